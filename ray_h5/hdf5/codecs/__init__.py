"""What undoes the filter pipelines of chunks."""
