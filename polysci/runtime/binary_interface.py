"""The C interface of a compiled primitive: its declarations, and its functions once loaded."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from polysci.codegen import interface
from polysci.errors import BuildError, SpecError
from polysci.numerics.dtypes import PRECISIONS, Precision
from polysci.runtime.build.library import Library

OK: Final = 0
NO_ISA: Final = 1  # the CPU lacks the instruction set that the code was generated for
ALIGNMENT: Final = 64  # bytes; of packed weights and workspace
F32: Final = PRECISIONS["f32"]


def declarations(symbol: str, precision: Precision = F32) -> str:
    """What C must be told of the primitive ``symbol``. Raises ``SpecError`` for no C identifier."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", symbol):
        raise SpecError(f"symbol: expected a C identifier, got {symbol!r}")
    types = interface.STRUCT if precision.scaled else ""
    return types + interface.declarations(symbol, precision)


@dataclass(frozen=True, slots=True)
class Functions:
    """A loaded primitive's functions (they take cffi pointers) and its sizes in bytes.

    ``run(x, packed, y, bias, residual, clamp, workspace)`` returns ``OK`` or ``NO_ISA`` and
    releases the GIL; ``pack(w, packed)``. Scaled results take a pointer to their scales before
    the workspace, whole inputs what they hold for zero after ``packed``. ``library`` keeps the
    code loaded.
    """

    library: Library
    run: Callable[..., int]
    pack: Callable[..., None]
    workspace_size: int
    packed_size: int


def bind(library: Library, symbol: str) -> Functions:
    """The functions of one primitive of a library loaded with its ``declarations``.

    Raises ``BuildError`` where the library lacks one or a size is negative.
    """
    lib: Any = library.lib
    try:
        functions = Functions(
            library,
            getattr(lib, symbol),
            getattr(lib, f"{symbol}_pack_weights"),
            getattr(lib, f"{symbol}_workspace_size")(),
            getattr(lib, f"{symbol}_packed_size")(),
        )
    except AttributeError as error:
        raise BuildError(f"{library}: {error}") from error
    if functions.workspace_size < 0 or functions.packed_size < 0:
        raise BuildError(
            f"{library}: {symbol}: a negative size of workspace ({functions.workspace_size}) "
            f"or of packed weights ({functions.packed_size})"
        )
    return functions
