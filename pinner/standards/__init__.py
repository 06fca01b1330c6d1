"""Committed metric series of a recipe, and the comparison of a run with them."""
