"""Stands in for TransformerEngine 2.20, transformer_engine/pytorch/attention."""
