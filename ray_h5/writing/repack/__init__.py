"""Files -> files that train fast: array by array, or row by row."""
