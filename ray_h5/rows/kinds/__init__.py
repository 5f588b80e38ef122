"""One module a row kind, and what they share."""
