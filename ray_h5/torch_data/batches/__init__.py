"""Rows -> samples and batches of tensors."""
