"""The version of polysci."""

__version__ = "0.2.0"
