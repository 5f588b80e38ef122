"""Ray Train: the batches of a worker, and the configuration of a trainer's datasets."""
