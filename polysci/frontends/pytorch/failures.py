"""Errors of PyTorch's own, told as such."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polysci.errors import PolysciError, UnsupportedError


@contextmanager
def pytorch_failures(where: str, what: str, advice: str = "") -> Iterator[None]:
    """UnsupportedError for what PyTorch raises inside, where it does ``what`` for us.

    It says that the failure is PyTorch's, its reason, and what to do.
    """
    try:
        yield
    except PolysciError:
        raise
    except Exception as error:  # of many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        hint = f"; {advice}" if advice else ""
        raise UnsupportedError(f"{where}: PyTorch fails when {what}: {reason}{hint}") from error
