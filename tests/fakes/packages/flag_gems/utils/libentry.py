"""Stands in for FlagGems 3.0, src/flag_gems/utils/libentry.py: the table of winners.

`database` is the file on disk: rows by table and key.
"""

import triton

database = {}


class ConfigCache:
    def __init__(self, table_name, conns, *args, **kwargs):
        self.table_name = table_name
        self.dict_cache = {}

    def __contains__(self, key):
        return self.get(key) is not None

    def __getitem__(self, key):
        return self.get(key)

    def __setitem__(self, key, config):
        self.set(key, config)

    def get(self, key):
        found = self.dict_cache.get(key)
        row = database.get((self.table_name, key))
        if found is not None or row is None:
            return found
        options = {name: row[name] for name in ("num_warps", "num_stages")}
        kwargs = {name: value for name, value in row.items() if name not in options}
        self.dict_cache[key] = triton.Config(kwargs, **options)
        return self.dict_cache[key]

    def set(self, key, config):
        every = config.all_kwargs()
        plain = {k: v for k, v in every.items() if isinstance(v, (int, float, str))}
        database[self.table_name, key] = plain
