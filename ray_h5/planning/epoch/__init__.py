"""In which order the rows of an epoch come, and in which blocks."""
