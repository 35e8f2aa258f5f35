"""The choices of a network's individual as one line of text, for records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polysci.algorithms import lowering
from polysci.errors import SpecError
from polysci.ops.parsing import parse_key
from polysci.polyhedral.schedule import parse

NETWORK: Final = "network"  # the first word of keys of such records
LAYER: Final = "layer"  # the first word of a choice between schedules; the problem's key follows
_IS, _AND = " = ", "; "


def text_of(texts: Mapping[str, str]) -> str:
    """``layer mm:64x64x64 f32 = j:16 i:6 > brgemm_avx2_f32_6x16; apart v3 = otherwise``."""
    return _AND.join(f"{name}{_IS}{text}" for name, text in texts.items())


def parse_texts(text: str) -> dict[str, str]:
    """The same back. Raises SpecError for what is no such text."""
    pairs = [part.partition(_IS) for part in text.split(_AND)]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        raise SpecError(f"individual of a network: expected 'CHOICE = OPTION', got {wrong[0]!r}")
    return {name: option for name, _, option in pairs}


def check_individual(text: str, threads: int) -> None:
    """Raise PolysciError unless its schedules are legal ones of their layers."""
    for name, option in parse_texts(text).items():
        kind, _, key = name.partition(" ")
        if kind == LAYER:
            lowering.emit(parse_key(key), parse(option), threads)
