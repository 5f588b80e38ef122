"""Columns that h5py reads, and what is checked before libhdf5 gets their bytes."""
