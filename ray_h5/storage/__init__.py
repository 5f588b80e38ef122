"""Where files are: which there are, how to tell a changed one, and their bytes. Today the local file system alone."""
