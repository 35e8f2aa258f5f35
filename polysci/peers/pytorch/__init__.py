"""oneDNN as PyTorch calls it at its best, in every precision that it has."""

from polysci.peers.pytorch.service import PyTorch

__all__ = ["PyTorch"]
