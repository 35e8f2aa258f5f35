"""Weights and decoder networks of GGUF files."""

from polysci.frontends.gguf.blocks import FORMATS
from polysci.frontends.gguf.file import GgufFile, GgufTensor, open_gguf, read_gguf

__all__ = ["FORMATS", "GgufFile", "GgufTensor", "open_gguf", "read_gguf"]
