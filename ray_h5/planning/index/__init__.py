"""Facts of files: row counts, schema, small columns."""
