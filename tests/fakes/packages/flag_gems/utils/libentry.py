"""Stands in for FlagGems 3.0, src/flag_gems/utils/libentry.py: the table of winners."""


class ConfigCache:
    def __init__(self, table_name, conns):
        self.table_name = table_name
        self.dict_cache = {}

    def __contains__(self, key):
        return self.get(key) is not None

    def __getitem__(self, key):
        return self.get(key)

    def __setitem__(self, key, config):
        self.set(key, config)

    def get(self, key):
        return self.dict_cache.get(key)

    def set(self, key, config):
        self.dict_cache[key] = config
