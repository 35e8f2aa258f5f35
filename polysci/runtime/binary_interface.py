"""The functions of a compiled primitive, once loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polysci.errors import BuildError
from polysci.printers.interface import Role, function_name
from polysci.runtime.backend import DeviceLibrary


@dataclass(frozen=True, slots=True)
class LoadedFunctions:
    """A loaded primitive's functions (they take arguments of its device) and its sizes in bytes.

    ``run`` and ``pack`` take what ``printers.interface.functions`` lists; ``run`` returns ``OK`` or
    ``NO_ISA`` and releases the GIL. ``library`` keeps the code loaded.
    """

    library: DeviceLibrary
    run: Callable[..., int]
    pack: Callable[..., None]
    workspace_size: int
    packed_size: int


def bind(library: DeviceLibrary, symbol: str) -> LoadedFunctions:
    """The functions of one primitive of a library loaded with its ``interface.declarations``.

    Raises ``BuildError`` where the library lacks one or a size is negative.
    """

    def function(role: Role) -> Any:
        return library.function(function_name(role, symbol))

    functions = LoadedFunctions(
        library,
        function("run"),
        function("pack_weights"),
        function("workspace_size")(),
        function("packed_size")(),
    )
    if functions.workspace_size < 0 or functions.packed_size < 0:
        raise BuildError(
            f"{library}: {symbol}: a negative size of workspace ({functions.workspace_size}) "
            f"or of packed weights ({functions.packed_size})"
        )
    return functions
