"""Names for what a tensor holds before and behind statements that add to it, and for gradients.

Until all statements are known, ``A@0`` is what A holds first, ``A@1`` what it holds behind the next
statement that adds to it, and ``d A`` is its gradient: no tensor of a text has such a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from polysci.frontends.notation.syntax import (
    Assignment,
    Element,
    IndexRange,
    Literal,
    Term,
    Variable,
    rewrite_statement,
    walk_terms,
)


def gradient(name: str) -> str:
    return f"d {name}"


def number_versions(
    inputs: Iterable[str], statements: Iterable[Assignment]
) -> list[tuple[dict[str, str], str]]:
    """Return, for each statement, the versions of tensors before it and of its target behind it."""
    current = {name: f"{name}@0" for name in inputs}
    numbered = []
    for statement in statements:
        before, tensor = dict(current), statement.tensor
        count = _number(current[tensor]) + 1 if tensor in current else 0
        current[tensor] = f"{tensor}@{count}"
        numbered.append((before, current[tensor]))
    return numbered


def copy_version(statement: Assignment, name: str, shape: Sequence[int]) -> Assignment:
    """Return what the target of a statement is before it, under another name."""
    index = tuple(map(Variable, statement.index))
    ends = zip(statement.index, shape, strict=True)
    ranges = tuple(IndexRange(axis, Literal(0), Literal(size)) for axis, size in ends)
    return Assignment(name, statement.index, "=", True, Element(statement.tensor, index), ranges)


def rename(statement: Assignment, names: Mapping[str, str]) -> Assignment:
    """A statement with other names for tensors."""

    def change(term: Term) -> Term:
        if isinstance(term, Element):
            return replace(term, tensor=names.get(term.tensor, term.tensor))
        return term

    changed = rewrite_statement(statement, change)
    return replace(changed, tensor=names.get(statement.tensor, statement.tensor))


def merge_versions(targets: Iterable[str], backward: Iterable[Assignment]) -> dict[str, str]:
    """The versions that need no tensor of their own -> the first one of their tensor.

    These are the versions of tensors of which ``backward`` reads none but the last: the statements
    before read the newest as well. ``targets`` are in the order of the statements.
    """
    last = {_tensor(name): name for name in targets}
    read = {part.tensor for statement in backward for part in walk_terms(statement.value)
            if isinstance(part, Element) and "@" in part.tensor}  # fmt: skip
    several = {_tensor(name) for name in read if name != last.get(_tensor(name), name)}
    return {
        f"{tensor}@{number}": f"{tensor}@0"
        for tensor, newest in last.items() if tensor not in several
        for number in range(1, _number(newest) + 1)
    }  # fmt: skip


def choose_names(
    inputs: Collection[str], gradients: Collection[str], statements: Iterable[Assignment]
) -> dict[str, str]:
    """The names of all tensors: inputs keep theirs, ``gradients`` begin with ``d_``."""
    names = {f"{name}@0": name for name in inputs}
    names |= {gradient(name): f"d_{name}" for name in gradients}
    taken = {*names.values()}
    every = list[str]()
    for statement in statements:
        parts = [*walk_terms(statement.value)]
        every += [part.tensor for part in parts if isinstance(part, Element)]
        every.append(statement.tensor)
        taken |= {*statement.index, *(bound.name for bound in statement.ranges)}
    for name in dict.fromkeys(every):
        if name not in names:
            plain = _tensor(name) if "@" in name else name.replace(" ", "_")
            number, names[name] = 0, plain
            while names[name] in taken:
                number += 1
                names[name] = f"{plain}_{number}"
            taken.add(names[name])
    return names


def _tensor(name: str) -> str:
    return name.partition("@")[0]


def _number(name: str) -> int:
    return int(name.partition("@")[2])
