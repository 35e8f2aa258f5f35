"""oneDNN through the fastest calls of PyTorch, in every precision that it supports."""

from polysci.peers.pytorch.service import PyTorch

__all__ = ["PyTorch"]
