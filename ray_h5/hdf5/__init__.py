"""One HDF5 file: bytes to arrays."""
