"""The rooms that know the internals of the libraries that choose: one for each library."""
