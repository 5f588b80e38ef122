"""Manifests and bytes -> arrays: the reader of one file."""
