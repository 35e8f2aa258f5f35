"""Loop IR of layers names variables, buffers and routines; no name is an expression of C."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest

from polysci.loop_ir.index import Flag, Mapped, Variable
from polysci.loop_ir.nodes import Buffer, Invoke, Member, Named, RoutineResult, ScalarParameter
from polysci.ops import parse_problem
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from tests.lower.direct.test_codegen import SCHEDULES

NAMED = Variable | Flag | Named | Buffer | ScalarParameter


def names_of(node: object) -> Iterator[str]:
    """Yield the names in a node of loop IR, and in all of its parts."""
    if isinstance(node, tuple):
        for part in node:
            yield from names_of(part)
    if not is_dataclass(node):
        return
    if isinstance(node, NAMED):
        yield node.name
    elif isinstance(node, Mapped | Invoke):
        yield node.function
    elif isinstance(node, RoutineResult):
        yield node.routine
    elif isinstance(node, Member):
        yield from (node.record, node.field)
    for field in fields(node):
        yield from names_of(getattr(node, field.name))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_names_are_identifiers(name: str) -> None:
    words, layout, schedule, threads, *dtype = SCHEDULES[name]
    source = emit(parse_problem(words, layout, *dtype), parse(schedule), threads)
    names = {*names_of(source.module.parts)}
    assert names and all(re.fullmatch(r"\w+", name) for name in names)
