"""Facts of single files: what is asked of a file, and what all files share."""
