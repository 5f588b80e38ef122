"""What is known of a file, as frozen values: arrays, joined arrays, chunk tables."""
