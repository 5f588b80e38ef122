"""What an open file says of its columns: bytes of headers -> layouts."""
