"""Leave what does not compile to PyTorch, and say so once, with the reason."""

from __future__ import annotations

import logging

from polysci.border.guard import is_expected, report_of

_log = logging.getLogger(__name__)
_told = set[str]()  # reasons


def reason_of(error: Exception) -> str:
    """One line of why something is left to PyTorch; what nobody could expect is to be reported."""
    known = error if is_expected(error) else report_of(error)
    text = " ".join(str(known).split())
    return f"it does not compile: {type(known).__name__}: {text:.400}"


def leave(what: str, reason: str) -> str:
    """Warn that ``what`` is left to PyTorch, once for each reason, which is returned."""
    _warn(what, reason)
    return reason


def leave_by(backend: str, what: str, error: Exception) -> None:
    """Warn of what another backend was to compile: the failure is its own."""
    _warn(what, f"{backend} cannot compile it: {' '.join(str(error).split()):.300}")


def _warn(what: str, reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        _log.warning("%s is left to PyTorch: %s", what, reason)
