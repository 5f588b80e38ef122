"""Which rows are wanted: what a user writes -> expressions -> row ids."""
