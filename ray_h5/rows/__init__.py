"""Row kinds: which units of arrays belong to a row."""
