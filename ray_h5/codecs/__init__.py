"""Stored bytes -> decoded bytes: codecs of filter pipelines, and images."""
