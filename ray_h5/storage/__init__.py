"""Where files are: their identities and their bytes. Today this is the local file system alone."""
