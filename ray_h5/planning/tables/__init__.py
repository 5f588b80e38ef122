"""Tables beside the files: their columns join the rows while planning."""
