"""Permutations and draws as functions of (seed, epoch, position)."""
