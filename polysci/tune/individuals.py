"""The choices of a network's individual as one line of text, for records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from polysci.errors import SpecError
from polysci.ops.registry import parse_key
from polysci.runtime.source import emit
from polysci.space.schedule import parse

NETWORK: Final = "network"  # the first word of keys of such records
LAYER: Final = "layer"  # the first word of a choice between schedules; the problem's key follows
PASSES: Final = ("apart", "turned", "no_rows", "updates")  # those of others; a tensor follows
AS_COSTS, OTHERWISE = "as costs say", "otherwise"  # the options of these
_IS, _AND = " = ", "; "
_KEY: Final = re.compile(rf"{NETWORK} [0-9a-f]+ \w+ \w+ (reproducible )?[0-9a-f]+")


def text_of(texts: Mapping[str, str]) -> str:
    """``layer mm:64x64x64 f32 = j:16 i:6 > brgemm_avx2_f32_6x16; apart v3 = otherwise``."""
    return _AND.join(f"{name}{_IS}{text}" for name, text in texts.items())


def parse_texts(text: str) -> dict[str, str]:
    """Return the choices of such texts. Raises SpecError for other texts."""
    texts = dict[str, str]()
    for part in text.split(_AND):
        name, sign, option = part.partition(_IS)
        kind, _, what = name.partition(" ")
        if not sign or not what:
            raise _refusal(f"expected 'CHOICE = OPTION', got {part!r}")
        if kind != LAYER and (kind not in PASSES or option not in (AS_COSTS, OTHERWISE)):
            raise _refusal(f"there is no choice {part!r}")
        if name in texts:
            raise _refusal(f"{name!r} is given twice")
        texts[name] = option
    return texts


def _refusal(reason: str) -> SpecError:
    return SpecError(f"individual of a network: {reason}")


def check_individual(problem: str, text: str, threads: int) -> None:
    """Raise PolysciError unless its schedules are legal ones of their layers."""
    if not _KEY.fullmatch(problem):
        raise SpecError(f"problem {problem!r}: expected '{NETWORK} DIGEST TYPE ALGORITHM DIGEST'")
    for name, option in parse_texts(text).items():
        kind, _, key = name.partition(" ")
        if kind == LAYER:
            emit(parse_key(key), parse(option), threads)
