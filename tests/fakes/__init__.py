"""Stand-ins for parts that this machine may lack; a test holds each to the real thing."""
