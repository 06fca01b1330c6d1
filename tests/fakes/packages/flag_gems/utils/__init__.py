"""Stands in for FlagGems 4, src/flag_gems/utils."""
