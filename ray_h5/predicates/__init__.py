"""What users write to choose rows -> the rows that pass."""
