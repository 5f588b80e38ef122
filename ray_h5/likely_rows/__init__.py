"""What a row of a file probably is, and the options that read it so: a guess from names, types and shapes."""
