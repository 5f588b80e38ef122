"""How the bytes of files in stores arrive."""
