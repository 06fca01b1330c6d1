"""The lockfile and what it is made from: schema, TOML codec, compiled pins, ledgers, merge,
diff."""
