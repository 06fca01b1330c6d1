"""Stands in for FlagGems 3.0, src/flag_gems/utils."""
