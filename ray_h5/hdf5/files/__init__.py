"""Files that libhdf5 opens, and files that they lead to."""
