"""How programs store values in several arrays: categories, packed numbers, reversed axes, references."""
