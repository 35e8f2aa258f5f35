"""The version of polysci."""

__version__ = "0.1.0"
