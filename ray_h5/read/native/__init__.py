"""Reads and decodes many chunks by one call: a loop in C, and the same loop in Python where it is not compiled."""
