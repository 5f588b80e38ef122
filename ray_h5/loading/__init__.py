"""Rows of an epoch as batches of arrays, read ahead: for plain PyTorch and for the training workers of Ray."""
