"""A compiled network in this process."""
