"""In which order the rows of an epoch come: arithmetic alone, of seed, epoch and position."""
