"""Parses files with libhdf5: no rows are read."""
