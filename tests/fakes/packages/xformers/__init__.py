"""Stands in for xformers 0.0.35."""
