"""Plain PyTorch: Datasets, Samplers and loaders; ray is never imported here."""
