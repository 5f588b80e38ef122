"""Object stores: their options, arguments and errors, and remote file systems."""
