"""The functions of a compiled primitive, once loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polysci.errors import BuildError
from polysci.printers.interface import Role, function_name
from polysci.runtime.build.library import Library


@dataclass(frozen=True, slots=True)
class LoadedFunctions:
    """A loaded primitive's functions (they take cffi pointers) and its sizes in bytes.

    ``run`` and ``pack`` take what ``codegen.interface.functions`` lists; ``run`` returns ``OK`` or
    ``NO_ISA`` and releases the GIL. ``library`` keeps the code loaded.
    """

    library: Library
    run: Callable[..., int]
    pack: Callable[..., None]
    workspace_size: int
    packed_size: int


def bind(library: Library, symbol: str) -> LoadedFunctions:
    """The functions of one primitive of a library loaded with its ``interface.declarations``.

    Raises ``BuildError`` where the library lacks one or a size is negative.
    """

    def function(role: Role) -> Any:
        return getattr(library.lib, function_name(role, symbol))

    try:
        functions = LoadedFunctions(
            library,
            function("run"),
            function("pack_weights"),
            function("workspace_size")(),
            function("packed_size")(),
        )
    except AttributeError as error:
        raise BuildError(f"{library}: {error}") from error
    if functions.workspace_size < 0 or functions.packed_size < 0:
        raise BuildError(
            f"{library}: {symbol}: a negative size of workspace ({functions.workspace_size}) "
            f"or of packed weights ({functions.packed_size})"
        )
    return functions
