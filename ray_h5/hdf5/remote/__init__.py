"""Remote files: libhdf5 parses bytes that are in memory, and rows are read by many requests at once."""
