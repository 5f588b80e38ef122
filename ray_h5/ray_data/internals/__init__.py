"""The private names of Ray that this package uses, in one place; written for ray 2.60.

One exception: a `Datasource` has to set its own ``_projection_map``, as `H5Datasource` does.
"""
