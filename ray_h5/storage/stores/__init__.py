"""Object stores: their options, errors and redirects, and remote file systems."""
