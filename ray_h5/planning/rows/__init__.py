"""Row kinds: what a row of a file is."""
