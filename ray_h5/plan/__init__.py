"""What will be read: files, selected rows, columns, and the order of these files; frozen, made before reading."""
