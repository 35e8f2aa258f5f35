"""A convolution in benchdnn's words, read and written by the rules of oneDNN's convolution driver.

``g mb ic id ih iw oc od oh ow kd kh kw sd sh sw pd ph pw dd dh dw n``; mb is 2, strides are 1 and
dilations 0 unless given. An axis is spoken of when one of its words says something but a default.
No w: the shape is square. No h: it is 1-D, an image of height 1. No output: computed from a padding
that is 0 unless given. Output but no padding: the padding that centres it. The words of an
activation, ``act=gelu``, stand before the name.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from polysci.errors import UnsupportedError
from polysci.ops.conv2d.extents import Conv2dExtents
from polysci.ops.conv2d.rules import FieldError, span
from polysci.ops.words import Words, activation_words, label

KEYS = (
    *("g", "mb"),
    *("ic", "id", "ih", "iw", "oc", "od", "oh", "ow", "kd", "kh", "kw"),
    *("sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"),
)
BATCH = 2  # benchdnn's
_NEUTRAL = {"i": 1, "o": 1, "k": 1, "s": 1, "p": 0, "d": 0}
_POSITIVE = ("g", "ic", "oc", *(kind + axis for axis in "dhw" for kind in "ioks"))
_WORDS = {
    **{"groups": "g", "N": "mb", "C": "ic", "K": "oc"},
    **{"H": "ih", "P": "oh", "R": "kh", "stride[0]": "sh", "pad[0]": "ph", "dilation[0]": "dh"},
    **{"W": "iw", "Q": "ow", "S": "kw", "stride[1]": "sw", "pad[1]": "pw", "dilation[1]": "dw"},
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Input, output (None: to compute) and filter extents, stride, padding, dilation from 0."""

    i: int
    o: int | None
    k: int
    s: int
    p: int
    d: int


_POINT = Axis(1, 1, 1, 1, 0, 0)


def arguments(words: Words) -> dict[str, Any]:
    """The arguments of Conv2d that ``words`` stand for. Raises SpecError or UnsupportedError."""
    for key in _POSITIVE:
        if words.get(key) == 0:
            raise words.line.error(words.at(key), f"{key}0 must be positive")
    for key in ("ic", "oc"):
        if words.get(key) is None:
            raise words.line.error(words.at(), f"{key} is missing", "ic and oc have no default.")
    h, w = _axes(words)
    return {
        **{"N": _or(words.get("mb"), BATCH), "C": words.get("ic"), "K": words.get("oc")},
        **{"H": h.i, "W": w.i, "R": h.k, "S": w.k, "P": h.o, "Q": w.o},
        **{"stride": (h.s, w.s), "pad": (h.p, w.p), "dilation": (h.d + 1, w.d + 1)},
        **{"groups": _or(words.get("g"), 1), "name": words.name},
        "activation": words.activation,
        "multiplicity": words.multiplicity,
    }


def write(problem: Conv2dExtents, *, named: bool = True) -> str:
    """The canonical words: as benchdnn echoes them, w left out of square shapes."""
    axes = [
        Axis(*numbers)
        for numbers in zip(
            *((problem.H, problem.W), (problem.P, problem.Q), (problem.R, problem.S)),
            *(problem.stride, problem.pad, (problem.dilation[0] - 1, problem.dilation[1] - 1)),
            strict=True,
        )
    ]
    spoken = axes if axes[0] != axes[1] else axes[:1]

    def spell(kind: str) -> str:
        return "".join(
            f"{kind}{letter}{getattr(a, kind)}" for letter, a in zip("hw", spoken, strict=False)
        )

    parts = (
        f"g{problem.groups}" if problem.groups != 1 else "",
        f"mb{problem.N}" if problem.N != BATCH else "",
        *(f"ic{problem.C}", spell("i"), f"oc{problem.K}", spell("o"), spell("k")),
        spell("s") if any(axis.s != 1 for axis in axes) else "",
        spell("p"),
        spell("d") if any(axis.d != 0 for axis in axes) else "",
    )
    end = label(problem.name, problem.multiplicity) if named else ""
    if not problem.activation:
        return "".join((*parts, end))
    return "".join((*parts, activation_words(problem.activation), " " * bool(end), end))


def locate_error(words: Words, error: FieldError) -> Exception:
    """What a rule of the fields says, said of the words, with a caret."""
    names = {}
    for field, value in error.values.items():
        key = _WORDS.get(field, field)
        names[field] = f"{key}{value - 1 if field.startswith('dilation') else value}"
    keys = [_WORDS.get(field, field) for field in error.fields()]
    computed = [f"i{key[1]}" for key in keys if key in ("oh", "ow")]
    squares = [f"{key[0]}h" for key in keys + computed if key[1:] == "w"]
    return words.line.error(words.at(*keys, *computed, *squares), error.told(names))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _axes(words: Words) -> tuple[Axis, Axis]:
    _refuse_depth(words)
    h, w = _axis(words, "h"), _axis(words, "w")
    if h is None and w is None:
        raise words.line.error(words.at(), "ih and kh are missing", "They have no default.")
    deep = next((key for key in ("id", "od", "kd") if key in words.values), None)
    if deep and (h is None or w is None):
        what = f"{deep} asks for both the h and the w words"
        raise words.line.error(words.at(deep), what, "Only a cube may leave two axes out.")
    if w is None and h is not None:
        _refuse_overruled(words, h)
    return h or _POINT, w or h or _POINT


def _axis(words: Words, letter: str) -> Axis | None:
    """The axis called ``letter``; None if no word speaks of it."""
    spelt = {kind: words.get(kind + letter) for kind in _NEUTRAL}
    spoken = [
        kind + letter
        for kind, value in spelt.items()
        if value is not None and (kind in "iok" or value != _NEUTRAL[kind])
    ]
    if not spoken:
        return None
    for kind in "ik":
        if spelt[kind] is None:
            what = f"{kind}{letter} is missing beside {spoken[0]}"
            raise words.line.error(words.at(spoken[0]), what, f"{kind}{letter} has no default.")
    i, k, s, d = spelt["i"] or 1, spelt["k"] or 1, spelt["s"] or 1, spelt["d"] or 0
    used = span(k, d + 1)
    if spelt["o"] is None:
        pad = spelt["p"] or 0
        return Axis(i, None, k, s, pad, d)
    pad = _or(spelt["p"], _centred(spelt["o"], i, s, used))
    if pad < 0:
        what = f"o{letter}{spelt['o']} leaves input unused and p{letter} is not given"
        raise words.line.error(words.at("o" + letter), what, f"Say how: p{letter}0, for example.")
    return Axis(i, spelt["o"], k, s, pad, d)


def _centred(out: int, size: int, stride: int, used: int) -> int:
    """benchdnn's padding for a given output: half of what is missing, rounded towards zero."""
    missing = (out - 1) * stride + used - size
    return missing // 2 if missing >= 0 else -(-missing // 2)


def _refuse_depth(words: Words) -> None:
    for kind, neutral in _NEUTRAL.items():
        value = words.get(f"{kind}d")
        if value is not None and value != neutral:
            what = f"{kind}d{value}: 3-D convolutions are not supported"
            rule = "Depth words may only say what a 2-D problem has: id1 od1 kd1 sd1 pd0 dd0."
            raise words.line.error(words.at(f"{kind}d"), what, rule, UnsupportedError)


def _refuse_overruled(words: Words, h: Axis) -> None:
    """A square shape takes w from h; benchdnn then drops sw1, pw0 and dw0 without a word."""
    for kind, value in zip(_NEUTRAL, astuple(h), strict=True):
        said = words.get(f"{kind}w")
        if said is not None and said != value:
            what = f"{kind}w{said} disagrees with {kind}h{value} of a square shape"
            rule = "A shape without iw and kw takes every w value from h: give all w words."
            raise words.line.error(words.at(f"{kind}w"), what, rule)
