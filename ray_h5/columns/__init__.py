"""What a column is made of: which arrays, and how their values are decoded."""
