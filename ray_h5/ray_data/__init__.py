"""Ray Data over HDF5 files; the only package that imports ray."""
