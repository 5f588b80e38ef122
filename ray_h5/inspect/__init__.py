"""``ray-h5 inspect``: what files hold, what `read_h5` delivers from them, and which layouts are slow to read."""
