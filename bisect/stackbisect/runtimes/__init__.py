"""Where candidates are tried: virtual environments, containers."""
