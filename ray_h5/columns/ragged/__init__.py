"""Rows of varying length: where they begin and end, their arrays, and one array of them."""
