"""Scop: domains, access relations, the original order and the dependences, as isl objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import islpy as isl

from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.turns import TURN, in_turn

KINDS = ("flow", "anti", "output", "input")
# isl's own count, 6 seconds or so. A convolution takes 16,000 to extract, 256,000 for dependences.
MAX_OPERATIONS = 10_000_000


@contextmanager
def bound_operations(work: str, limit: int = MAX_OPERATIONS) -> Iterator[None]:
    """Let isl spend at most ``limit`` operations on ``work``, and speak for it when it fails.

    Other threads wait: all share isl's counter. Raises UnsupportedError when the limit is reached
    or isl gives up.
    """
    context = isl.DEFAULT_CONTEXT
    with TURN:
        before = context.get_max_operations()
        context.reset_operations()
        context.set_max_operations(limit)
        try:
            yield
        except isl.Error as error:
            raise UnsupportedError(
                f"{work}: isl gave up within {limit} operations; the sets are too involved. "
                "Use fewer statements, guards or divisions."
            ) from error
        finally:
            context.set_max_operations(before)
            context.reset_operations()


@dataclass(frozen=True, slots=True)
class Array:
    """A C array of constant extents; a scalar has the shape ``()``."""

    name: str
    shape: tuple[int, ...]
    dtype_c: str = "float"

    def __str__(self) -> str:
        return f"{self.dtype_c} {self.name}{''.join(f'[{extent}]' for extent in self.shape)}"

    def elements(self) -> isl.Set:
        """Return all elements, as a named isl box."""
        axes = ", ".join(f"i{axis}" for axis in range(len(self.shape)))
        bounds = (f"0 <= i{axis} < {extent}" for axis, extent in enumerate(self.shape))
        return isl.Set(f"{{ {self.name}[{axes}] : {' and '.join(bounds) or 'true'} }}")


@dataclass(frozen=True, slots=True)
class Access:
    """One reference to an array.

    ``map`` sends an iteration to the element; it follows from the subscripts alone, so it holds
    beyond the domain too, except under ``?:``, where the condition bounds it.
    """

    array: str
    kind: str  # "read" or "write"
    map: isl.Map

    def __str__(self) -> str:
        return f"{self.kind} {self.map}"


@dataclass(frozen=True, slots=True)
class Statement:
    """One assignment and the iterations that execute it.

    ``box`` is what the loops alone span, ``domain`` what the guards leave of it. ``schedule`` maps
    an iteration to its place in the 2d+1 order of the text. ``reduction`` is ``+`` or ``*`` for
    ``X = X + ...`` or ``X = X * ...`` whose new term does not read X, else empty; ``factors`` are
    the two reads when the assigned or added term is a bare product ``A[..] * B[..]``, else empty.
    """

    name: str
    domain: isl.Set
    accesses: tuple[Access, ...]
    schedule: isl.Map
    text: str
    line: int
    box: isl.Set
    reduction: str = ""
    factors: tuple[Access, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (line {self.line}): {self.text}"

    @property
    def iterators(self) -> tuple[str, ...]:
        """The loops around it, outermost first."""
        dims = range(self.domain.dim(isl.dim_type.set))
        return tuple(str(self.domain.get_dim_name(isl.dim_type.set, dim)) for dim in dims)

    @property
    def write(self) -> Access:
        return next(access for access in self.accesses if access.kind == "write")


@dataclass(frozen=True, slots=True)
class Scop:
    """A static control part: every access, bound and guard is affine, every extent a constant."""

    name: str
    arrays: tuple[Array, ...]
    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        titles = ("domain", "reads", "writes", "schedule")
        parts = (self.domain(), self.reads(), self.writes(), self.schedule())
        return "\n".join(f"{word} {part}" for word, part in zip(titles, parts, strict=True))

    def array(self, name: str) -> Array:
        """Return the array of that name. Raises SpecError when the Scop has none."""
        for array in self.arrays:
            if array.name == name:
                return array
        raise SpecError(f"{self.name} has no array {name!r}")

    @in_turn
    def domain(self) -> isl.UnionSet:
        union = isl.UnionSet("{ }")
        for statement in self.statements:
            union = union.union(isl.UnionSet.from_set(statement.domain))
        return union

    @in_turn
    def reads(self) -> isl.UnionMap:
        """Iterations of the domain to the elements they read."""
        return self._accesses("read")

    @in_turn
    def writes(self) -> isl.UnionMap:
        """Iterations of the domain to the elements they write."""
        return self._accesses("write")

    @in_turn
    def schedule(self) -> isl.UnionMap:
        """Iterations of the domain to their place in the order of the text."""
        return _union(s.schedule.intersect_domain(s.domain) for s in self.statements)

    def dependences(self, kind: str) -> isl.UnionMap:
        """Pairs of iterations, earlier to later, that touch the same element.

        ``kind`` says how: ``flow`` (write, read), ``anti`` (read, write), ``output`` (write, write)
        or ``input`` (read, read). Raises SpecError for another kind, UnsupportedError when isl
        gives up.
        """
        if kind not in _ENDS:
            raise SpecError(
                f"unknown kind of dependence {kind!r}; the kinds are {', '.join(KINDS)}"
            )
        source, sink = (ends(self) for ends in _ENDS[kind])
        with bound_operations(f"{kind} dependences of {self.name}"):
            return _flow(source, sink, self.schedule())

    def reduction_dependences(self) -> isl.UnionMap:
        """Pairs of iterations of one statement that only accumulate into the same element.

        The same pairs are its flow, anti and output dependences; reordering them changes the
        result by rounding alone. Subtract them from :meth:`dependences` where that is allowed.
        """
        with bound_operations(f"reduction dependences of {self.name}"):
            return _union(self._accumulations())

    def _accumulations(self) -> Iterator[isl.UnionMap]:
        for statement in self.statements:
            if statement.reduction:
                elements = _union([statement.write.map.intersect_domain(statement.domain)])
                order = _union([statement.schedule.intersect_domain(statement.domain)])
                yield _flow(elements, elements, order)

    def _accesses(self, kind: str) -> isl.UnionMap:
        return _union(
            access.map.intersect_domain(statement.domain)
            for statement in self.statements
            for access in statement.accesses
            if access.kind == kind
        )


def sum_of_products(
    name: str,
    arrays: Sequence[Array],
    bounds: Mapping[str, str],
    guards: Sequence[str],
    elements: Sequence[tuple[str, str]],
    text: str,
) -> Scop:
    """Return the Scop of one statement, ``text``, that adds a product to its target in loops.

    ``bounds`` are those of the loops, outermost first, by iterator; ``elements`` the array and the
    subscripts of the target and of both factors: all in isl's notation.
    """
    iterators, conditions = f"S0[{', '.join(bounds)}]", [*bounds.values()]
    with bound_operations(f"extraction of {name}"):
        box = isl.Set(f"{{ {iterators} : {' and '.join(conditions) or 'true'} }}")
        domain = isl.Set(f"{{ {iterators} : {' and '.join([*conditions, *guards]) or 'true'} }}")
        relations = [isl.Map(f"{{ {iterators} -> {array}[{at}] }}") for array, at in elements]
        times = ", ".join(["0", *(f"{loop}, 0" for loop in bounds)])
        schedule = isl.Map(f"{{ {iterators} -> [{times}] }}")
    reads = [Access(array, "read", at) for (array, _), at in zip(elements, relations, strict=True)]
    write = Access(elements[0][0], "write", relations[0])
    statement = Statement(
        "S0", domain, (*reads, write), schedule, text, 1, box, "+", tuple(reads[1:])
    )
    return Scop(name, tuple(arrays), (statement,))


_ENDS: dict[str, tuple[Callable[[Scop], isl.UnionMap], Callable[[Scop], isl.UnionMap]]] = {
    "flow": (Scop.writes, Scop.reads),
    "anti": (Scop.reads, Scop.writes),
    "output": (Scop.writes, Scop.writes),
    "input": (Scop.reads, Scop.reads),
}


def _union(maps: Iterable[isl.Map | isl.UnionMap]) -> isl.UnionMap:
    union = isl.UnionMap("{ }")
    for part in maps:
        union = union.union(part)
    return union


def _flow(source: isl.UnionMap, sink: isl.UnionMap, order: isl.UnionMap) -> isl.UnionMap:
    access = isl.UnionAccessInfo.from_sink(sink).set_may_source(source)
    return access.set_schedule_map(order).compute_flow().get_may_dependence()
