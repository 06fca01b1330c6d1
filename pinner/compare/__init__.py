"""What two runs left behind, aligned and read: evidence, later traces. Pure."""
