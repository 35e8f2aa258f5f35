"""oneDNN itself, through its C API: version 3, on OpenMP."""

from polysci.peers.onednn.service import OneDNN

__all__ = ["OneDNN"]
