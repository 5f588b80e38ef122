"""Which epoch an iteration reads: set by `set_epoch` from anywhere in a job, or counted."""
