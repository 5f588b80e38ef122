"""Rows -> HDF5 files: repack, and the file writer of the datasink."""
