"""Tables beside the files, whose columns join the rows."""
