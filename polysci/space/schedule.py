"""A schedule: tile loops, parallel marks, packing and the microkernel, as one line of text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from polysci.border.arguments import check_type, describe
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.polyhedral.tile_schedule import Loop, TileSchedule

MOST_WORDS = 100  # loops and marks; what is made of a schedule takes time for each
_LOOP = re.compile(r"(?P<dim>[A-Za-z_]\w*)(?::(?P<step>[0-9]{1,12}))?(?P<parallel>\*)?")
AHEAD = "ahead(B)"
STREAM = "stream(C)"
_LAST = (AHEAD, STREAM)  # in this order
SWAP = "swap(A,B)"
PRIVATE = "private(C)"
HILBERT = "hilbert(C)"
PLAIN = "plain(B)"
_FIRST = (SWAP, PRIVATE, HILBERT, PLAIN)  # in this order
_PACK = re.compile(r"pack\((?:A\)(?:\+(?P<pad>[0-9]{1,6}))?|(?P<operand>B)\))")
_TRANSFORM = re.compile(
    r"(?!pack\(|ahead\(|stream\(|private\(|hilbert\(|plain\()(?P<name>[a-z][a-z0-9_]*)\((?P<numbers>([0-9]{1,6}(,[0-9]{1,6})*)?)\)"
)


@dataclass(frozen=True, slots=True)
class Pack:
    """``pack(A)[+pad]``: copy what the loops inside read of A, padding filled as x holds zero.

    ``pad`` elements are added between neighbouring pixels, so that rows do not fall into one
    cache set. ``pack(B)`` copies what they read of a B that changes from call to call into panels.
    """

    pad: int = 0
    operand: str = "A"

    def __str__(self) -> str:
        return f"pack({self.operand})" + (f"+{self.pad}" if self.pad else "")


@dataclass(frozen=True, slots=True)
class Transform:
    """``name(numbers)``: the loops around and inside it are those of the algorithm of that name.

    The algorithm says which dimensions they run over, and what the numbers mean.
    """

    name: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.numbers))})"


@dataclass(frozen=True, slots=True)
class Schedule:
    """``n* k:64* pack(A) c:64 p q:14 k:32 > brgemm_avx512_f32_14x32``, outer to inner.

    At the end, ``ahead(B)`` prefetches the next panel of weights into L2 while one is used, and
    ``stream(C)`` stores C past the caches, for outputs larger than those. ``swap(A,B)`` at the
    beginning lets the factors change places: rows of a call are then what columns are otherwise,
    and vectors run along the pixels of an image (``space.swapped_roles``). ``private(C)`` behind it
    lets parallel loops run over reductions: each of their turns sums into a copy of C of its own,
    and the copies are summed at the end (``space.private_copies``); without such loops there is one
    copy, of a C too narrow for partial sums. ``hilbert(C)`` lets the turns
    of the two outermost loops, the blocks of C, follow a generalised Hilbert curve; where both are
    parallel, each thread has a piece of the curve. A B that changes from call to call is copied
    into panels before all loops; ``pack(B)`` among them copies part by part, and ``plain(B)`` lets
    calls read it where it lies.

    The innermost loop over a dimension steps by that dimension's extent in one microkernel call;
    dimensions without a loop lie inside the call whole.
    """

    steps: tuple[Loop | Pack | Transform, ...]
    kernel: str
    stream: bool = False
    ahead: bool = False
    swap: bool = False
    private: bool = False
    hilbert: bool = False
    plain: bool = False

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
            check_type("schedule.steps", part, *_PARTS)
            for field, kind in _PARTS[type(part)].items():
                check_type(f"schedule: {type(part).__name__}.{field}", getattr(part, field), kind)
        if Schedule.parse(str(self)) != self:
            raise SpecError(f"schedule {self}: another one than its text describes")

    def __str__(self) -> str:
        on = (self.swap, self.private, self.hilbert, self.plain)
        first = [mark for mark, is_on in zip(_FIRST, on, strict=True) if is_on]
        last = [AHEAD] * self.ahead + [STREAM] * self.stream
        return f"{' '.join([*first, *map(str, self.steps), *last])} > {self.kernel}"

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(step for step in self.steps if isinstance(step, Loop))

    @property
    def pack(self) -> Pack | None:
        """The packing of A."""
        return next((step for step in self._packings if step.operand == "A"), None)

    @property
    def packs_parts_of_b(self) -> bool:
        """Whether B is copied into panels inside loops, part by part."""
        return any(step.operand == "B" for step in self._packings)

    @property
    def _packings(self) -> list[Pack]:
        return [step for step in self.steps if isinstance(step, Pack)]

    @property
    def transform(self) -> Transform | None:
        return next((step for step in self.steps if isinstance(step, Transform)), None)

    @property
    def pack_depth(self) -> int:
        """How many loops enclose the packing of A."""
        return self._depth_of("A")

    @property
    def panels_depth(self) -> int:
        """How many loops enclose the packing of B; 0 where it is whole."""
        return self._depth_of("B") if self.packs_parts_of_b else 0

    def _depth_of(self, operand: str) -> int:
        depth = 0
        for step in self.steps:
            if isinstance(step, Pack) and step.operand == operand:
                return depth
            depth += not isinstance(step, Pack)
        return depth

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
        on_curve = 2 * self.hilbert
        return TileSchedule(extents, self.loops, packings, str(self), on_curve, self.private)

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
        marks = [loop.parallel for loop in self.loops]
        if marks != sorted(marks, reverse=True):
            raise SpecError(f"schedule: {self}: parallel loops must be the outermost ones")
        if len({loop.dim for loop in self.parallel}) != len(self.parallel):
            raise SpecError(f"schedule: {self}: a dimension can be parallel once")
        if self.pack and 0 < self.pack_depth < len(self.parallel):
            raise SpecError(f"schedule: {self}: packing may not stand between parallel loops")
        if self.packs_parts_of_b and (why := self._panels_fault()):
            raise SpecError(f"schedule: {self}: pack(B): {why}")
        if self.hilbert and (why := self._curve_fault()):
            raise SpecError(f"schedule: {self}: {HILBERT} orders blocks of C: {why}")

    def _panels_fault(self) -> str:
        """Why B cannot be copied part by part; empty where it can."""
        if not self.panels_depth:
            return "it stands inside a loop; without it, B is copied before all of them"
        if self.panels_depth < len(self.parallel):
            return "it may not stand between parallel loops"
        on = (self.swap, self.hilbert, self.plain, self.ahead)
        marks = zip((SWAP, HILBERT, PLAIN, AHEAD), on, strict=True)
        other = next((mark for mark, is_on in marks if is_on), "")
        return f"{other} needs B as a whole" if other else ""

    def _curve_fault(self) -> str:
        """Why the two outermost loops cannot follow a curve; empty where they can."""
        if len({loop.dim for loop in self.loops[:2]}) < 2:
            return "it needs two outermost loops over different dimensions"
        if len(self.parallel) not in (0, 2):
            return "its two loops are both parallel or neither is"
        if self.pack and self.pack_depth == 1:
            return "nothing is packed between its two loops"
        other = next(
            (mark for mark, on in ((AHEAD, self.ahead), (PRIVATE, self.private)) if on), ""
        )
        return f"{other} follows the order of loops" if other else ""


_PARTS: Mapping[type, Mapping[str, type]] = MappingProxyType(
    {
        Loop: {"dim": str, "step": int, "parallel": bool},
        Pack: {"pad": int, "operand": str},
        Transform: {"name": str, "numbers": tuple},
        Schedule: {"kernel": str}
        | dict.fromkeys(("stream", "ahead", "swap", "private", "hilbert", "plain"), bool),
    }
)


def parse(text: str) -> Schedule:
    """The schedule a text describes; ``parse(str(s)) == s``. Raises SpecError with the bad word."""
    body, arrow, kernel = text.partition(">")
    kernel = kernel.strip()
    if not arrow or not re.fullmatch(r"[A-Za-z_]\w*", kernel):
        raise SpecError(f"schedule {text!r}: expected 'LOOPS > KERNEL'")
    steps: list[Loop | Pack | Transform] = []
    words, marks = body.split(), set[str]()
    if len(words) > MOST_WORDS:
        raise SpecError(f"schedule {text!r}: {len(words)} words; expected at most {MOST_WORDS}")
    for mark in reversed(_LAST):
        if words[-1:] == [mark]:
            marks.add(words.pop())
    for mark in _FIRST:
        if words[:1] == [mark]:
            marks.add(words.pop(0))
    for word in words:
        if match := _LOOP.fullmatch(word):
            steps.append(Loop(match["dim"], int(match["step"] or 1), match["parallel"] is not None))
        elif match := _PACK.fullmatch(word):
            pack = Pack(int(match["pad"] or 0), match["operand"] or "A")
            if any(isinstance(step, Pack) and step.operand == pack.operand for step in steps):
                raise SpecError(f"schedule {text!r}: {word!r}: one packing of each at most")
            steps.append(pack)
        elif match := _TRANSFORM.fullmatch(word):
            if any(isinstance(step, Transform) for step in steps):
                raise SpecError(f"schedule {text!r}: {word!r}: one transform at most")
            numbers = tuple(map(int, filter(None, match["numbers"].split(","))))
            steps.append(Transform(match["name"], numbers))
        else:
            raise SpecError(
                f"schedule {text!r}: {word!r} is neither a loop 'dim[:step][*]' "
                f"nor 'pack(A)[+pad]' nor 'pack(B)' nor 'transform(numbers)' "
                f"nor a first {' '.join(_FIRST)!r} nor a last {' '.join(_LAST)!r}"
            )
    return Schedule(tuple(steps), kernel, *(mark in marks for mark in (STREAM, AHEAD, *_FIRST)))
