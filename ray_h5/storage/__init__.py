"""Where files are: their listing, identity and bytes. Today this is the local file system alone."""
