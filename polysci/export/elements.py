"""Values of templates that depend on precisions: element types, rounding, scales."""

from __future__ import annotations

from textwrap import wrap

from polysci.export.project import Project, fill_template
from polysci.printers.interface import SCALES

_WIDTH = 98  # columns of a comment
_TOLD = {
    "f32": "f32 is float",
    "bf16": "bf16 is the upper half of an f32 in a uint16_t",
    "f16": "f16 is IEEE 754's binary16 in a uint16_t",
    "u8": "u8 is uint8_t",
    "s8": "s8 is int8_t",
    "s32": "s32 is int32_t",
}


def holes(whole: Project) -> dict[str, str]:
    """Return the values of templates that speak of types."""
    types = [entry.precision for entry in whole.entries]
    told = {
        "rounded.txt": any(row.y.name in ("bf16", "f16") for row in types),
        "whole.txt": any(row.integer for row in types),
        "scaled.txt": any(row.scaled for row in types),
    }
    return {
        "PRECISIONS": precisions(whole),
        "ELEMENTS": "\n".join(wrap(
            "Arrays are contiguous, in the order, with the strides (in elements) and of the types "
            f"given below: {_types(whole)}.",
            _WIDTH, initial_indent=" * ", subsequent_indent=" * ",
        )),
        "RULES": "".join(fill_template(name, {}).rstrip() for name, says in told.items() if says),
        "X_ZERO": _parameter(", x_zero", [row.integer for row in types]),
        "TO": _parameter(" to,", [row.scaled for row in types]),
        "SCALES": f"{SCALES}\n" if told["scaled.txt"] else "",
    }  # fmt: skip


def precisions(whole: Project) -> str:
    """Those of the layers, in their order."""
    return ", ".join(dict.fromkeys(str(entry.precision) for entry in whole.entries))


def _types(whole: Project) -> str:
    """The types of all arrays, and what they are in C."""
    rows = [entry.precision for entry in whole.entries]
    names = {t.name for row in rows for t in (row.x, row.w, row.y, row.sum)}
    return "; ".join(text for name, text in _TOLD.items() if name in names)


def _parameter(text: str, takes: list[bool]) -> str:
    """A parameter that all layers take, or some, or none."""
    return (text if all(takes) else f"[{text}]") if any(takes) else ""
