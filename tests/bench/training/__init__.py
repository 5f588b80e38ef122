"""How long training waits for batches, in loops of any kind, and what sending them to a GPU costs."""
