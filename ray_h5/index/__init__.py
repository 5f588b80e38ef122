"""Facts of all files of a dataset, kept in memory and on disk."""
