"""Arrays -> blocks of Ray Data, and back."""
