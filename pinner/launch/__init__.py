"""Starts the user's command under pinner, waits for it, and reads what its processes wrote."""
