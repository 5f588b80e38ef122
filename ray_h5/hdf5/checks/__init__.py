"""Checks of what libhdf5 or a decoder would otherwise take on trust."""
