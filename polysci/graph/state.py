"""State in graphs whose models hand it in and out: what a caller would carry from run to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.errors import SpecError
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Node, Tensor
from polysci.text.names import suggest

_WHOLE: Final = ("int32", "int64")
COUNT: Final = "position"  # of tokens so far, where no input of the model says it


@dataclass(frozen=True, slots=True)
class KeptState:
    """The inputs of a model that a network keeps, or makes itself.

    ``pairs``: inputs and the outputs that replace them; a ``*`` in both stands for what runs
    through several, as the number of a layer. An output may be the input's rows with new ones
    behind them (Concat); then it lies in the network, as long as it is, and a run writes its row at
    the place that is the count of rows so far. ``positions``: an input of whole numbers that count
    on from run to run. ``mask``: an input that is 1 for rows so far, these included, else 0.
    """

    pairs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    positions: str = ""
    mask: str = ""

    def __bool__(self) -> bool:
        return bool(self.pairs or self.positions or self.mask)


NOTHING_KEPT: Final = KeptState()


def keep_state(graph: Graph, kept: KeptState) -> Graph:
    """Return the graph with state for inputs. Raises SpecError for what is not so."""
    if not kept:
        return graph
    keeper = _Keeper(graph)
    replaced = dict[str, str]()
    for past, present in _expand_pairs(graph, kept.pairs):
        replaced[keeper.keep(past, present)] = past
    if kept.positions:
        keeper.count_positions(kept.positions)
    if kept.mask:
        keeper.make_mask(kept.mask)
    return keeper.done(replaced)


def _expand_pairs(graph: Graph, pairs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names of inputs and outputs; each is there, and once."""
    inputs, outputs = ([tensor.name for tensor in its] for its in (graph.inputs, graph.outputs))
    names_of_pairs = list[tuple[str, str]]()
    for past, present in pairs.items():
        pattern = re.compile(re.escape(past).replace(r"\*", "(.*)"))
        matches = [match for name in inputs if (match := pattern.fullmatch(name))]
        own = [(match[0], present.replace("*", (*match.groups(), "")[0])) for match in matches]
        if not own:
            raise SpecError(f"state {past!r:.80}: no input has that name{suggest(past, inputs)}")
        if wrong := [name for _, name in own if name not in outputs]:
            raise SpecError(
                f"state {past!r:.80}: no output is {wrong[0]!r:.80}{suggest(wrong[0], outputs)}"
            )
        names_of_pairs += own
    for names in zip(*names_of_pairs, strict=True):
        if twice := [one for one, other in pairwise(sorted(names)) if one == other]:
            raise SpecError(f"state: {twice[0]!r:.80} is named twice")
    return names_of_pairs


class _Keeper:
    """A graph on its way: nodes that are new, and inputs that became state."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.build = graph, GraphBuilder(replace(graph, nodes=()))
        self.behind = list(graph.nodes)
        self.state = dict(graph.state)
        self.run = 1  # rows of a run
        self.counter = graph.counter

    def keep(self, past: str, present: str) -> str:
        """Let an output replace an input in the network; return its name."""
        old, new = self.graph.tensors[past], self.graph.tensors[present]
        self.state[past] = np.zeros(new.shape, np.uint16 if new.dtype == "bf16" else new.dtype)
        if old == replace(new, name=past):
            return present
        axis = self._joined(past, present)
        self.build.tensors[past] = replace(new, name=past)
        at = next(at for at, node in enumerate(self.behind) if present in node.outputs)
        place = self.build.reshape(self._counted(), (1, 1))
        _, rows = self.behind[at].inputs
        names = (past, place, rows)
        self.behind[at] = Node("scatter_nd", names, (present,), MappingProxyType({"axis": axis}))
        return present

    def _joined(self, past: str, present: str) -> int:
        """Return the axis along which an output is an input with a row behind it."""
        old, new = self.graph.tensors[past], self.graph.tensors[present]
        what = f"state {past!r:.80}: {present!r:.80} is {new.dtype}{list(new.shape)}"
        node = self.graph.makers().get(present)
        readers = self.graph.readers().get(past, [])
        if node is None or node.op != "concat" or node.inputs[:1] != (past,):
            raise SpecError(f"{what}, of another shape or type, and not the input with rows behind")
        axis = int(node.attributes["axis"]) % len(new.shape)
        if len(node.inputs) != 2 or new.shape[axis] - old.shape[axis] != 1:
            raise SpecError(
                f"{what} for {list(old.shape)}: a run adds one row; bind the sizes so that the "
                "input has one row less than the cache"
            )
        if readers != [node]:
            raise SpecError(f"{what}: {readers[0]} reads the input as well")
        return axis

    def _counted(self) -> str:
        """Return the state that counts rows so far."""
        if not self.counter:
            name = COUNT if COUNT not in self.build.tensors else self.build.fresh(COUNT)
            self.build.tensors[name] = Tensor(name, (), "int64")
            self.state[name], self.counter = np.zeros((), np.int64), name
        return self.counter

    def _whole_input(self, what: str, name: str) -> Tensor:
        known = {
            tensor.name: tensor for tensor in self.graph.inputs if tensor.name not in self.state
        }
        if name not in known:
            raise SpecError(f"{what} {name!r:.80}: no input has that name{suggest(name, known)}")
        return known[name]

    def count_positions(self, name: str) -> None:
        """Let the network make an input: the count of tokens so far, and those behind it."""
        tensor = self._whole_input("positions", name)
        if tensor.dtype not in _WHOLE or tensor.size != max((1, *tensor.shape)):
            raise SpecError(
                f"positions {name!r:.80}: expected a whole number for each token, got {tensor}"
            )
        self.run, count = tensor.size, self._counted()
        steps = self.build.constant(np.arange(self.run).reshape(tensor.shape))
        places = self.build.add("add", (steps, count), tensor.shape, "int64")
        self._make(tensor, places)

    def make_mask(self, name: str) -> None:
        """Let the network make an input: 1 for rows so far, those of this run included."""
        tensor = self._whole_input("mask", name)
        if not tensor.shape or tensor.size != tensor.shape[-1]:
            raise SpecError(f"mask {name!r:.80}: expected a number for each row, got {tensor}")
        last = self.build.add(
            "add", (self._counted(), self.build.constant(np.array(self.run))), (), "int64"
        )
        rows = self.build.constant(np.arange(tensor.size).reshape(tensor.shape))
        self._make(tensor, self.build.add("less", (rows, last), tensor.shape, "bool"))

    def _make(self, tensor: Tensor, made: str) -> None:
        """Let nodes make an input; it has the type that the model reads."""
        self.build.tensors[tensor.name] = tensor
        same = self.build.dtype(made) == tensor.dtype
        self.build.put("identity" if same else "cast", (made,), tensor)

    def done(self, replaced: Mapping[str, str]) -> Graph:
        """Return the graph: outputs of the model, then what replaces state."""
        replaced = {**self.graph.in_place, **replaced}
        if self.counter and self.counter not in replaced.values():
            step = self.build.constant(np.array(self.run))
            following = self.build.add("add", (self.counter, step), (), "int64")
            replaced[following] = self.counter
        made = {name for node in self.build.nodes for name in node.outputs}
        self.build.nodes += self.behind
        known = [tensor.name for tensor in self.graph.inputs if tensor.name not in made]
        new = [name for name in self.state if name not in known]
        inputs = [self.build.tensors[name] for name in (*known, *new)]
        outputs = [tensor.name for tensor in self.graph.outputs if tensor.name not in replaced]
        graph = self.build.to_graph(inputs, [*outputs, *replaced])
        return replace(graph, in_place=replaced, state=self.state, counter=self.counter)
