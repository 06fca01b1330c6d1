"""The lockfile: schema, TOML codec, compiled pins, ledgers, merge, diff. Pure but for reading and
writing files."""
