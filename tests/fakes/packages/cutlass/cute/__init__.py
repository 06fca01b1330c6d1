"""Stands in for nvidia-cutlass-dsl 4.7.0, cutlass/cute."""
