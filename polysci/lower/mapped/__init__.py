"""Tiles of work-groups of devices: loops mapped to groups and to their work-items."""
