"""Facts of files in memory and in index files."""
