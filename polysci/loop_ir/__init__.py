"""What one element is, and the loops over elements."""
