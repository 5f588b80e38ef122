"""What ours is compared with, written plainly."""
