"""From source, or from a pickle, to a primitive: built, or found in the cache, and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from polysci.border.arguments import check_type
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.algorithm import SYMBOL
from polysci.lower.direct.denormals import KEEP_FLAG
from polysci.numerics import arrays
from polysci.ops.parsing import parse_problem
from polysci.ops.problem import Problem
from polysci.printers import interface
from polysci.runtime import measurement as measurements
from polysci.runtime.backend import Backend, backend_of
from polysci.runtime.build.compiler import default_flags
from polysci.runtime.build.library import float_pointer
from polysci.runtime.measurement import Measurement
from polysci.runtime.primitive import PackedWeights, Primitive
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.isas import isa_named
from polysci.target.microkernels import find
from polysci.version import __version__

if TYPE_CHECKING:
    from polysci.lower.direct.emit import Source


def build_primitive(source: Source, *, flush_denormals: bool = True) -> tuple[Backend, Path]:
    """The shared object of a source, built or found in the cache, and what built it."""
    check_type("flush_denormals", flush_denormals, bool)
    backend = backend_of(isa_named(source.isa))
    flags = None if flush_denormals else (*default_flags(), KEEP_FLAG)
    return backend, backend.build(source.file, flags=flags, symbols=source.symbols)


def load_primitive(
    problem: Problem,
    source: Source,
    threads: int,
    measurement: Measurement | None = None,
    *,
    flush_denormals: bool = True,
) -> Primitive:
    """Build (or find in the cache) and load the primitive of a source. Raises BuildError."""
    backend, path = build_primitive(source, flush_denormals=flush_denormals)
    library = backend.load(path, interface.declarations(SYMBOL, source.precision))
    return Primitive(
        problem, source.schedule, source, library, SYMBOL, measurement, threads, flush_denormals
    )


def restore_primitive(
    text: str,
    layout: str,
    dtype: str,
    schedule: str,
    threads: int,
    measurement: str | None,
    flush_denormals: bool = True,
) -> Primitive:
    """The primitive of a pickle.

    Raises UnsupportedError on a CPU that lacks the instruction set, and as ``emit`` and ``build``
    do.
    """
    problem, parsed = parse_problem(text, layout, dtype), Schedule.parse(schedule)
    target, isa = detect(), find(parsed.kernel).isa
    if reason := target.refusal(isa):
        raise UnsupportedError(
            f"pickled primitive of {text}: {parsed.kernel} {reason}; compile it again"
        )
    coded = problem if problem.x_shape[0] else problem.with_batch(1)
    source = backend_of(isa_named(isa)).emit(coded, parsed, threads)
    measured = None if measurement is None else measurements.parse(measurement)
    return load_primitive(problem, source, threads, measured, flush_denormals=flush_denormals)


def restore_weights(identity: str, packed_by: str, array: NDArray[Any]) -> PackedWeights:
    """The packed weights of a pickle. Raises SpecError where another version packed them."""
    if packed_by != __version__:
        raise SpecError(
            f"pickled weights for {identity!r}: packed by polysci {packed_by}, and this is "
            f"{__version__}: pack them again"
        )
    packed = arrays.reserve_copy(array)
    packed.flags.writeable = False
    return PackedWeights(identity, packed, float_pointer(packed))
