"""Why a network cannot be compiled: grouped by operator, counted, with the advice that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polysci.errors import UnsupportedError

MOST_NAMES = 3  # nodes that a line names


class Refusal(Exception):  # noqa: N818 - becomes part of one UnsupportedError for all nodes
    """Why one node cannot be computed; ``needs`` are tensors that would have to be constant."""

    def __init__(self, reason: str, *needs: str) -> None:
        super().__init__(reason)
        self.needs = needs


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why one node cannot be compiled; ``inputs`` of the network that would have to be constant.

    ``op`` is empty for what is no node, as an input of the network.
    """

    op: str
    node: str
    reason: str
    inputs: tuple[str, ...] = ()


class RefusedNodesError(UnsupportedError):
    """A network with nodes that cannot be compiled; ``refusals`` has one entry for each."""

    def __init__(self, where: str, refusals: Sequence[NodeRefusal]) -> None:
        self.refusals = tuple(refusals)
        count = f"{len(refusals)} unsupported node{'s' * (len(refusals) > 1)}"
        lines = _lines(refusals)
        super().__init__(f"{where}: {count}:" + ("\n  " if lines[1:] else " ") + "\n  ".join(lines))


def _lines(refusals: Iterable[NodeRefusal]) -> list[str]:
    """One line for each operator and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[NodeRefusal]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.op, refusal.reason), []).append(refusal)
    return [_line(group) for group in sorted(groups.values(), key=len, reverse=True)]


def _line(group: Sequence[NodeRefusal]) -> str:
    names = [f"{refusal.node!r:.200}" for refusal in group[:MOST_NAMES]]
    more = ", ..." if len(group) > MOST_NAMES else ""
    head = f"{len(group)} x {group[0].op}" if group[0].op else f"{len(group)}"
    inputs = dict.fromkeys(name for refusal in group for name in refusal.inputs)
    return f"{head} ({', '.join(names)}{more}): {group[0].reason}{_advice(list(inputs))}"


def _advice(inputs: Sequence[str]) -> str:
    if not inputs:
        return ""
    options = " ".join(f"--value {name:.200}=V" for name in inputs)
    what = "this input" if len(inputs) == 1 else "these inputs"
    return f"; bind {what} to a constant, as in {options}"
