"""In which order the rows of an epoch come: arithmetic alone, of which a position is a function."""
