"""The columns of an open file: lists, finds and describes them."""
