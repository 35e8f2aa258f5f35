"""extract: a C loop nest, as text or as a cgen tree, to a Scop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polysci.errors import SpecError
from polysci.polyhedral.extract.expressions import ArrayTable, shapes_of_arguments
from polysci.polyhedral.extract.nest import Walk
from polysci.polyhedral.extract.parse import declarations, parse
from polysci.polyhedral.extract.source import read
from polysci.polyhedral.scop import Scop, bound_operations

if TYPE_CHECKING:
    from cgen import Generable

__all__ = ["extract"]


def extract(
    source: str | Generable,
    *,
    filename: str = "<nest>",
    arrays: Mapping[str, Sequence[int]] | None = None,
) -> Scop:
    """Return the Scop of the code between ``#pragma scop`` and ``#pragma endscop``.

    A cgen tree without the pragmas is one region. ``arrays`` maps names to extents, for arrays that
    the text does not declare. The Scop has the file's name.

    Raises SpecError with file, line, column and a caret where the text is not C or not affine, or
    where a subscript can exceed its array; UnsupportedError where isl needs too many operations;
    TypeError for a source of another kind.
    """
    text = source if isinstance(source, str) else _c_text(source)
    try:
        with bound_operations(f"extraction of {filename}"):
            return _extract(text, filename, shapes_of_arguments(arrays))
    except RecursionError:
        raise SpecError(
            f"{filename}: statements or expressions nested too deeply; split them"
        ) from None


def _c_text(tree: Generable) -> str:
    if not callable(getattr(type(tree), "generate", None)):
        raise TypeError(f"source: expected C text or a cgen tree, got {type(tree).__name__}")
    text = "\n".join(tree.generate())
    return text if "#pragma scop" in text else f"#pragma scop\n{text}\n#pragma endscop\n"


def _extract(text: str, filename: str, shapes: Mapping[str, tuple[int, ...]]) -> Scop:
    code = read(text, filename)
    nodes = parse(code)
    reach = ArrayTable(code, declarations(code.outside), shapes)
    statements = Walk(code, reach).statements(nodes)
    touched = {access.array for statement in statements for access in statement.accesses}
    used = tuple(array for name, array in reach.used.items() if name in touched)
    return Scop(filename, used, statements)
