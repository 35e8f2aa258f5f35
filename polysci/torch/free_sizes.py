"""Sizes that ``dynamic_shapes`` of torch.export leaves free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polysci.errors import SpecError
from polysci.torch.capture import capture


def check_sizes(module: Any, examples: Any, dynamic_shapes: Any, inputs: Any) -> None:
    """Raise SpecError for sizes that are not free, of a module that can be captured at all.

    Raises torch.export's own error for ``dynamic_shapes`` that do not fit the module.
    """
    args, words = examples
    try:
        exported = capture(module, args, words, dynamic_shapes)
    except Exception:
        if _can_be_captured(module, args, words):
            raise
        return
    try:
        exported.module()(*inputs[0], **inputs[1])
    except (AssertionError, RuntimeError, ValueError) as error:
        text = str(error).split("\n", maxsplit=1)[0]
        raise SpecError(f"inputs: sizes that dynamic_shapes does not take: {text:.300}") from None


def _can_be_captured(module: Any, args: tuple[Any, ...], words: Mapping[str, Any]) -> bool:
    try:
        capture(module, args, words)
    except Exception:  # of many kinds
        return False
    return True
