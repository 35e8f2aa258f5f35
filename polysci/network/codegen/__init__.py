"""A placed program as C."""
