"""What is known of files: row counts, schema, small columns."""
