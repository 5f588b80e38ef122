"""Bytes of the HDF5 file format: addresses, object headers, the global heap and types. No file is opened here."""
