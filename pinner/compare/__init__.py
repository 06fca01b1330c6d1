"""What two runs left behind, aligned and read: evidence, traces, what locks keep of it."""
