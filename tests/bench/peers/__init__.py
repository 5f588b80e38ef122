"""Bench `peers`: other formats and libraries, each in a process of its own, beside ours."""
