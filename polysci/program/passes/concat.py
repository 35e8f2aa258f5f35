"""Concatenations: which parts can be written where they will be read."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.program.passes.row import Fusion
from polysci.program.stages import ConcatStage, Program, Stage, ViewStage


@dataclass(frozen=True, slots=True)
class ConcatPart:
    """A place inside a concatenation."""

    whole: str
    axis: int
    first: int


def hosts(program: Program) -> dict[str, ConcatPart]:
    """Return the parts of concatenations that are written where they will be read."""
    places: dict[str, ConcatPart] = {}
    makers = program.makers()
    for concat in reversed([stage for stage in program.stages if isinstance(stage, ConcatStage)]):
        first = 0
        for name in concat.parts:
            if name not in places and not _refusal(program, concat, name, makers.get(name, [])):
                places[name] = ConcatPart(concat.output, concat.axis, first)
            first += program.values[name].shape[concat.axis]
    return places


def _refusal(program: Program, concat: ConcatStage, name: str, writers: list[Stage]) -> str:
    """Return why a part must be copied; empty if it need not be."""
    if not writers:
        return "no stage makes it"
    if any(isinstance(stage, ViewStage) for stage in writers):
        return "it is another name of elements elsewhere"
    if program.values[name].dtype != program.values[concat.output].dtype:
        return "its elements are of another type"
    if concat.parts.count(name) > 1:
        return "it stands there more than once"
    return "it is an output" if name in program.outputs else ""


def concat_in_place(program: Program) -> tuple[Fusion, ...]:
    """Return for every part of every concat that it is written in place, or why it is copied."""
    parts, makers, considered = hosts(program), program.makers(), list[Fusion]()
    for concat in program.stages:
        if not isinstance(concat, ConcatStage):
            continue
        for name in dict.fromkeys(concat.parts):
            writers = makers.get(name, [])
            refusal = _refusal(program, concat, name, writers)
            if not refusal and parts[name].whole != concat.output:
                refusal = f"it is part of {parts[name].whole}"
            first = writers[0].name if writers else name
            saved = 2 * program.values[name].bytes
            considered.append(Fusion(first, concat.name, name, saved, refusal))
    return tuple(considered)
