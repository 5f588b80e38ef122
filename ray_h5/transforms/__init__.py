"""Arrays -> arrays."""
