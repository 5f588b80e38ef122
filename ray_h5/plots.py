"""Figures of rows, augmentation, shuffles and epochs (matplotlib)."""
