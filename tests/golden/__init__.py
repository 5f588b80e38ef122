"""What must not move: orders, values, states, names and files that a version wrote. See `python -m tests.golden`."""
