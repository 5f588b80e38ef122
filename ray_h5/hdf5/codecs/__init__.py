"""Decodes the filter pipelines of chunks."""
