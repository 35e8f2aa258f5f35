"""A schedule: tile loops, directives and the microkernel, as one line of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from polysci.border.arguments import check_type, describe
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.polyhedral.tile_schedule import Loop, TileSchedule
from polysci.space import directives
from polysci.space.directives import Directive, Pack, Place, Private

MOST_WORDS = 100  # loops and directives; what is made of a schedule takes time for each
_LOOP = re.compile(r"(?P<dim>[A-Za-z_]\w*)(?::(?P<step>[0-9]{1,12}))?(?P<mark>\*|@[a-z]{2})?")
_TRANSFORM = re.compile(r"(?P<name>[a-z][a-z0-9_]*)\((?P<numbers>([0-9]{1,6}(,[0-9]{1,6})*)?)\)")
Row = TypeVar("Row", bound=Directive)


@dataclass(frozen=True, slots=True)
class Transform:
    """``name(numbers)``: the loops around and inside it are those of the algorithm of that name.

    The algorithm says which dimensions they run over, and what the numbers mean.
    """

    name: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.numbers))})"


Step: TypeAlias = Loop | Transform | Directive


@dataclass(frozen=True, slots=True)
class Schedule:
    """``n* k:64* pack(A) c:64 p q:14 k:32 > brgemm_avx512_f32_14x32``, outer to inner.

    ``steps`` are the words before the kernel, in order: loops and directives (``DIRECTIVES`` lists
    them), and the transform of an algorithm. Directives of the whole schedule stand before the
    loops or behind them, those of an operand among them.

    The innermost loop over a dimension steps by that dimension's extent in one microkernel call;
    dimensions without a loop lie inside the call whole. A B that changes from call to call is
    copied into panels before all loops, but where a directive says otherwise.
    """

    steps: tuple[Step, ...]
    kernel: str

    @classmethod
    @guard
    def parse(cls, text: str) -> Schedule:
        """The schedule of a text; ``Schedule.parse(str(s)) == s``.

        Raises SpecError with the bad word, TypeError for what is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"schedule: expected a Schedule or its text, got {describe(text)}")
        return parse(text)

    def check_parts(self) -> None:
        """Raise TypeError or SpecError unless it is what the parser makes of its text."""
        check_type("schedule.steps", self.steps, tuple)
        for part in (self, *self.steps):
            check_type("schedule.steps", part, *_FIELD_TYPES, *directives.DIRECTIVES)
            types = part.field_types if isinstance(part, Directive) else _FIELD_TYPES[type(part)]
            for field, kind in types.items():
                check_type(f"schedule: {type(part).__name__}.{field}", getattr(part, field), kind)
        if Schedule.parse(str(self)) != self:
            raise SpecError(f"schedule {self}: another one than its text describes")

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.steps))} > {self.kernel}"

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(step for step in self.steps if isinstance(step, Loop))

    @property
    def directives(self) -> tuple[Directive, ...]:
        return tuple(step for step in self.steps if isinstance(step, Directive))

    def find(self, row: type[Row]) -> Row | None:
        """Return the first directive of a row of the table; None where it has none."""
        return next((step for step in self.steps if isinstance(step, row)), None)

    def has(self, row: type[Directive]) -> bool:
        """Return whether a directive of that row stands in it."""
        return self.find(row) is not None

    def having(self, *added: Directive) -> Schedule:
        """Return the schedule with directives that stand before or behind the loops."""
        rows = tuple(type(directive) for directive in added)
        kept = (step for step in self.directives if not isinstance(step, rows))
        return self._around(self.nest, (*kept, *added))

    def without(self, *rows: type[Directive]) -> Schedule:
        """Return the schedule without the directives of these rows."""
        return replace(self, steps=tuple(s for s in self.steps if not isinstance(s, rows)))

    @property
    def nest(self) -> tuple[Step, ...]:
        """The loops, and what stands among them."""
        return tuple(step for step in self.steps if _place(step) is Place.AMONG)

    def with_nest(self, nest: Iterable[Step]) -> Schedule:
        """Return the schedule with other loops, and what stands among these."""
        return self._around(nest, self.directives)

    def _around(self, nest: Iterable[Step], ends: Iterable[Directive]) -> Schedule:
        """Return the schedule of a nest; of directives those that stand at its ends are taken."""
        order = directives.DIRECTIVES.index
        ordered = sorted(ends, key=lambda directive: order(type(directive)))
        first, last = (
            [directive for directive in ordered if directive.place is place]
            for place in (Place.FIRST, Place.LAST)
        )
        return replace(self, steps=(*first, *nest, *last))

    @property
    def packings(self) -> dict[str, Pack]:
        """The packings by their operands."""
        return {step.operand: step for step in self.steps if isinstance(step, Pack)}

    @property
    def pack(self) -> Pack | None:
        """The packing of A."""
        return self.packings.get("A")

    @property
    def packs_parts_of_b(self) -> bool:
        """Return whether B is copied into panels inside loops, part by part."""
        return "B" in self.packings

    @property
    def transform(self) -> Transform | None:
        return next((step for step in self.steps if isinstance(step, Transform)), None)

    @property
    def pack_depth(self) -> int:
        """Return how many loops enclose the packing of A."""
        return self._depth_of("A")

    @property
    def panels_depth(self) -> int:
        """Return how many loops enclose the packing of B; 0 where it is whole."""
        return self._depth_of("B") if self.packs_parts_of_b else 0

    def _depth_of(self, operand: str) -> int:
        depth = 0
        for step in self.steps:
            if isinstance(step, Pack) and step.operand == operand:
                return depth
            depth += not isinstance(step, Directive)
        return depth

    @property
    def mapped(self) -> tuple[Loop, ...]:
        """The loops that are mapped to axes of a device."""
        return tuple(loop for loop in self.loops if loop.axis)

    @property
    def parallel(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.parallel)

    def tile(self, extents: Mapping[str, int], depth: int | None = None) -> dict[str, int]:
        """Extent of every dimension inside the outermost ``depth`` loops (all: one call's tile)."""
        tile = dict(extents)
        for loop in self.loops[:depth]:
            tile[loop.dim] = min(loop.step, tile[loop.dim])
        return tile

    def tile_schedule(self, extents: Mapping[str, int]) -> TileSchedule:
        """Return the loops as isl takes them. Raises SpecError for loops that do not nest."""
        self.check(extents)
        depths = {"A": self.pack_depth if self.pack else 0, "B": self.panels_depth}
        packings = {operand: depth for operand, depth in depths.items() if depth}
        return TileSchedule(extents, self.loops, packings, str(self), self.has(Private))

    def check(self, extents: Mapping[str, int]) -> None:
        """Raise SpecError unless the loops nest properly over dimensions that exist."""
        current = dict(extents)
        for loop in self.loops:
            if loop.dim not in current:
                known = ", ".join(extents)
                raise SpecError(f"schedule: loop {loop}: no dimension {loop.dim!r} among {known}")
            if loop.step < 1:
                raise SpecError(f"schedule: loop {loop}: the step must be at least 1")
            if loop.step > current[loop.dim]:
                raise SpecError(
                    f"schedule: loop {loop}: step {loop.step} exceeds the {current[loop.dim]} "
                    f"of {loop.dim!r} that reach it"
                )
            current[loop.dim] = loop.step
        for i, loop in enumerate(self.loops):
            for inner in self.loops[i + 1 :]:
                if inner.dim == loop.dim and loop.step % inner.step:
                    raise SpecError(
                        f"schedule: loop {loop}: its step must be a multiple of {inner}'s inside it"
                    )
        if self.mapped:
            raise SpecError(f"schedule: {self}: loops mapped to axes are of devices with groups")
        marks = [loop.parallel for loop in self.loops]
        if marks != sorted(marks, reverse=True):
            raise SpecError(f"schedule: {self}: parallel loops must be the outermost ones")
        if len({loop.dim for loop in self.parallel}) != len(self.parallel):
            raise SpecError(f"schedule: {self}: a dimension can be parallel once")
        for directive in self.directives:
            if why := directive.fault(self):
                raise SpecError(f"schedule: {self}: {why}")


_FIELD_TYPES: Mapping[type, Mapping[str, type]] = MappingProxyType(
    {
        Loop: {"dim": str, "step": int, "parallel": bool, "axis": str},
        Transform: {"name": str, "numbers": tuple},
        Schedule: {"kernel": str},
    }
)


def _place(step: Step) -> Place:
    return step.place if isinstance(step, Directive) else Place.AMONG


def parse(text: str) -> Schedule:
    """The schedule a text describes; ``parse(str(s)) == s``. Raises SpecError with the bad word."""
    body, arrow, kernel = text.partition(">")
    kernel = kernel.strip()
    if not arrow or not re.fullmatch(r"[A-Za-z_]\w*", kernel):
        raise SpecError(f"schedule {text!r}: expected 'LOOPS > KERNEL'")
    tokens = body.split()
    if len(tokens) > MOST_WORDS:
        raise SpecError(f"schedule {text!r}: {len(tokens)} words; expected at most {MOST_WORDS}")
    first, last = list[Step](), list[Step]()
    for row in reversed(directives.standing(Place.LAST)):
        if tokens and (directive := row.parse(tokens[-1])):
            last.insert(0, directive)
            tokens.pop()
    for row in directives.standing(Place.FIRST):
        if tokens and (directive := row.parse(tokens[0])):
            first.append(directive)
            tokens.pop(0)
    nest = list[Step]()
    for word in tokens:
        step = _parse_step(word)
        if step is None:
            raise SpecError(f"schedule {text!r}: {word!r} is neither {_expected_words()}")
        if isinstance(step, Directive) and any(step.repeats(other) for other in nest):
            raise SpecError(f"schedule {text!r}: {word!r}: one packing of each at most")
        if isinstance(step, Transform) and any(isinstance(other, Transform) for other in nest):
            raise SpecError(f"schedule {text!r}: {word!r}: one transform at most")
        nest.append(step)
    return Schedule((*first, *nest, *last), kernel)


def _parse_step(word: str) -> Step | None:
    """Return the loop, directive among loops, or transform that a word spells."""
    if match := _LOOP.fullmatch(word):
        mark = match["mark"] or ""
        step = int(match["step"] or 1)
        return Loop(match["dim"], step, mark == "*", mark.removeprefix("@").removeprefix("*"))
    for row in directives.standing(Place.AMONG):
        if directive := row.parse(word):
            return directive
    match = _TRANSFORM.fullmatch(word)
    names = {form.partition("(")[0] for row in directives.DIRECTIVES for form in row.forms()}
    if match is None or match["name"] in names:
        return None
    return Transform(match["name"], tuple(map(int, filter(None, match["numbers"].split(",")))))


def _expected_words() -> str:
    """Return which words a schedule may have, for messages."""
    among, first, last = (
        [form for row in directives.standing(place) for form in row.forms()]
        for place in (Place.AMONG, Place.FIRST, Place.LAST)
    )
    spelled = [
        "a loop 'dim[:step][*]' or 'dim[:step]@axis'",
        *map(repr, [*among, "transform(numbers)"]),
    ]
    return " nor ".join([*spelled, f"a first {' '.join(first)!r}", f"a last {' '.join(last)!r}"])
