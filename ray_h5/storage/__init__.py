"""Where files are: their listing, identity and bytes."""
