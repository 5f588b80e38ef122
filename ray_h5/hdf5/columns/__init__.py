"""Datasets: their types, chunks, and where their values come from."""
