"""A convolution in benchdnn's words, read and written by the rules of oneDNN's convolution driver.

``g mb ic id ih iw oc od oh ow kd kh kw sd sh sw pd ph pw dd dh dw n``; mb is 2, strides are 1 and
dilations 0 unless given. An axis is spoken of when one of its words says something but a default.
No w: the shape is square, or with depth and no h a cube. No h: it is 1-D, an image of height 1. No
output: computed from a padding that is 0 unless given. Output but no padding: the padding that
centres it. The words of an activation, ``act=gelu``, stand before the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any

from polysci.errors import UnsupportedError
from polysci.ops.convolution_rules import ConvolutionFamily, FieldError, span
from polysci.ops.words import LIMIT, Words, write_activation, write_label

KEYS = (
    *("g", "mb"),
    *("ic", "id", "ih", "iw", "oc", "od", "oh", "ow", "kd", "kh", "kw"),
    *("sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"),
)
BATCH = 2  # benchdnn's
_NEUTRAL = {"i": 1, "o": 1, "k": 1, "s": 1, "p": 0, "d": 0}
_POSITIVE = ("g", "ic", "oc", *(kind + axis for axis in "dhw" for kind in "ioks"))
_CUBE = "Only a cube may leave two axes out."
_COUNTS = {"groups": "g", "N": "mb", "C": "ic", "K": "oc"}


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


def arguments(words: Words, family: ConvolutionFamily) -> dict[str, Any]:
    """Return the arguments of a convolution that ``words`` stand for.

    Raises SpecError, or UnsupportedError for depth where there is none.
    """
    for key in _POSITIVE:
        if words.get(key) == 0:
            raise words.line.error(words.at(key), f"{key}0 must be positive")
    for key in ("ic", "oc"):
        if words.get(key) is None:
            raise words.line.error(words.at(), f"{key} is missing", "ic and oc have no default.")
    axes = _READERS[family.letters](words, family)
    extents = {
        field: value
        for (size, taps, out, _), axis in zip(family.axes, axes, strict=True)
        for field, value in ((size, axis.i), (taps, axis.k), (out, axis.o))
    }
    return {
        **{"N": _or(words.get("mb"), BATCH), "C": words.get("ic"), "K": words.get("oc")},
        **extents,
        "stride": tuple(axis.s for axis in axes),
        "pad": tuple(axis.p for axis in axes),
        "dilation": tuple(axis.d + 1 for axis in axes),
        **{"groups": _or(words.get("g"), 1), "name": words.name},
        "activation": words.activation,
        "multiplicity": words.multiplicity,
    }


def write(problem: Any, *, named: bool = True) -> str:
    """Return the words of a convolution, transposed or not, as benchdnn echoes them.

    Square shapes leave w out.
    """
    family: ConvolutionFamily = problem.FAMILY
    places = zip(problem.stride, problem.pad, problem.dilation, strict=True)
    axes = [
        Axis(getattr(problem, i), getattr(problem, o), getattr(problem, k), s, p, d - 1)
        for (i, k, o, _), (s, p, d) in zip(family.axes, places, strict=True)
    ]
    spoken = axes if any(axis != axes[0] for axis in axes) else axes[:1]

    def spell(kind: str) -> str:
        return "".join(
            f"{kind}{letter}{getattr(axis, kind)}"
            for letter, axis in zip(family.letters, spoken, strict=False)
        )

    parts = (
        f"g{problem.groups}" if problem.groups != 1 else "",
        f"mb{problem.N}" if problem.N != BATCH else "",
        *(f"ic{problem.C}", spell("i"), f"oc{problem.K}", spell("o"), spell("k")),
        spell("s") if any(axis.s != 1 for axis in axes) else "",
        spell("p"),
        spell("d") if any(axis.d != 0 for axis in axes) else "",
    )
    end = write_label(problem.name, problem.multiplicity) if named else ""
    if not problem.activation:
        return "".join((*parts, end))
    return "".join((*parts, write_activation(problem.activation), " " * bool(end), end))


def locate_error(words: Words, error: FieldError) -> Exception:
    """Return the error of a rule about fields, told of the words, with a caret."""
    family, names = error.family, {}
    of = _COUNTS | {
        field: f"{kind}{letter}"
        for letter, (size, taps, out, at) in zip(family.letters, family.axes, strict=True)
        for field, kind in (
            *((size, "i"), (out, "o"), (taps, "k")),
            *((f"stride[{at}]", "s"), (f"pad[{at}]", "p"), (f"dilation[{at}]", "d")),
        )
    }
    for field, value in error.values.items():
        said = value - 1 if field.startswith("dilation") else value
        names[field] = f"{of.get(field, field)}{said}"
    keys = [of.get(field, field) for field in error.fields()]
    computed = [f"i{key[1]}" for key in keys if key in ("od", "oh", "ow")]
    spoken, first = keys + computed, family.letters[0]
    squares = [f"{key[0]}{first}" for key in spoken if key[1:] in tuple(family.letters[1:])]
    return words.line.error(words.at(*keys, *computed, *squares), error.phrase(names))


def speaks_of_depth(words: Words) -> bool:
    """Return whether some word of the depth says anything but what an image has."""
    values = ((words.get(f"{kind}d"), neutral) for kind, neutral in _NEUTRAL.items())
    return any(value not in (None, neutral) for value, neutral in values)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _long_axis(words: Words, family: ConvolutionFamily) -> tuple[Axis]:
    for letter in "dh":
        _refuse_axis(words, letter)
    w = _axis(words, "w", family)
    if w is None:
        raise words.line.error(words.at(), "iw and kw are missing", "They have no default.")
    return (w,)


def _flat_axes(words: Words, family: ConvolutionFamily) -> tuple[Axis, Axis]:
    _refuse_axis(words, "d")
    h, w = _axis(words, "h", family), _axis(words, "w", family)
    if h is None and w is None:
        raise words.line.error(words.at(), "ih and kh are missing", "They have no default.")
    deep = next((key for key in ("id", "od", "kd") if key in words.values), None)
    if deep and (h is None or w is None):
        what = f"{deep} asks for both the h and the w words"
        raise words.line.error(words.at(deep), what, _CUBE)
    if w is None and h is not None:
        _refuse_overruled(words, "h", h, "w")
    return h or _POINT, w or h or _POINT


def _deep_axes(words: Words, family: ConvolutionFamily) -> tuple[Axis, Axis, Axis]:
    d, h, w = (
        _axis(words, letter, family) or (_POINT if f"i{letter}" in words.values else None)
        for letter in "dhw"
    )
    if d is None:
        raise words.line.error(words.at(), "id and kd are missing", "They have no default.")
    if h is None and w is None:
        for letter in "hw":
            _refuse_overruled(words, "d", d, letter)
        return d, d, d
    if h is None or w is None:
        raise words.line.error(words.at("id"), "id asks for both the h and the w words", _CUBE)
    return d, h, w


def _axis(words: Words, letter: str, family: ConvolutionFamily) -> Axis | None:
    """Return the axis called ``letter``; None if no word speaks of it."""
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
    ends = (i, spelt["o"]) if family.transposed else (spelt["o"], i)
    pad = _or(spelt["p"], max(_centre_padding(*ends, s, used), 0 if family.transposed else -LIMIT))
    if pad < 0:
        what = f"o{letter}{spelt['o']} leaves input unused and p{letter} is not given"
        raise words.line.error(words.at("o" + letter), what, f"Say how: p{letter}0, for example.")
    return Axis(i, spelt["o"], k, s, pad, d)


def _centre_padding(out: int, size: int, stride: int, used: int) -> int:
    """benchdnn's padding for a given output: half of what is missing, rounded towards zero."""
    missing = (out - 1) * stride + used - size
    return missing // 2 if missing >= 0 else -(-missing // 2)


def _refuse_axis(words: Words, letter: str) -> None:
    """Raise UnsupportedError where words speak of an axis that the convolution lacks."""
    axes, reader, less = ("3-D", "Conv3d", "2-D") if letter == "d" else ("2-D", "Conv2d", "1-D")
    idle = " ".join(f"{kind}{letter}{neutral}" for kind, neutral in _NEUTRAL.items())
    for kind, neutral in _NEUTRAL.items():
        value = words.get(f"{kind}{letter}")
        if value is not None and value != neutral:
            what = f"{kind}{letter}{value}: {axes} words, which {reader} reads"
            rule = f"Words of {letter} may only say what a {less} problem has: {idle}."
            raise words.line.error(words.at(f"{kind}{letter}"), what, rule, UnsupportedError)


def _refuse_overruled(words: Words, letter: str, axis: Axis, other: str) -> None:
    """Squares take w from h, cubes both from d; benchdnn then drops sw1, pw0 and dw0 silently."""
    for kind, value in zip(_NEUTRAL, astuple(axis), strict=True):
        said = words.get(f"{kind}{other}")
        if said is not None and said != value:
            shape = "square" if letter == "h" else "cubic"
            what = f"{kind}{other}{said} disagrees with {kind}{letter}{value} of a {shape} shape"
            rule = f"A shape without i{other} and k{other} takes every {other} value from {letter}"
            advice = f"{rule}: give all {other} words."
            raise words.line.error(words.at(f"{kind}{other}"), what, advice)


_READERS: Mapping[str, Callable[[Words, ConvolutionFamily], tuple[Axis, ...]]] = MappingProxyType(
    {"w": _long_axis, "hw": _flat_axes, "dhw": _deep_axes}
)
