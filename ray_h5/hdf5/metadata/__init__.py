"""The metadata of an open file -> layouts of columns. No row is read."""
