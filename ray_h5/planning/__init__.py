"""Which rows, in which order, in which block."""
