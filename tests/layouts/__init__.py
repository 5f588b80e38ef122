"""Files as communities write them, and what is read from them by default and by the call that `inspect` prints."""
