"""Columns that are read without libhdf5."""
