"""In which order the rows of an epoch come: shuffle, draws, blocks, position, resume."""
