"""Programs that the tests run: small, and with faults that can be planted."""
