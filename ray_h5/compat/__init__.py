"""Datasets, samplers and loaders that people know from elsewhere, under their names."""
