"""The peer's worker: one layer at a time, by the fastest way that the library has for it.

Ways differ in formats, algorithms, scratchpads, and types of 16 bits or f32 for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError, UnsupportedError
from polysci.measure.disturbance import observe
from polysci.measure.timed_calls import PAGE_OFFSETS, Timed, TimedPaths, count_copies
from polysci.numerics.dtypes import DTYPES, values
from polysci.ops import parse_problem
from polysci.peers.example_inputs import ExampleInputs, example_inputs, fault
from polysci.peers.onednn import declarations as api
from polysci.peers.onednn.library import Dnnl, DnnlMemory, Execution, Handle
from polysci.peers.onednn.operators import DnnlOperator, Formats, operator_of
from polysci.runtime.backends.host import Host

_PLAIN_LOOPS: Final = "ref"  # of the implementations' names
_SCRATCHPADS: Final = (api.LIBRARY_SCRATCHPAD, api.USER_SCRATCHPAD)
_X, _Y, _W, _SCRATCH = PAGE_OFFSETS


class OneDNN:
    """One layer at a time; its threads are those of the process's ``OMP_NUM_THREADS``."""

    operations = ("open", "prepare", "load", "sample")

    def __init__(self) -> None:
        self._dnnl: Dnnl | None = None
        self._problem: DnnlProblem
        self._paths: dict[str, DnnlPath] = {}
        self._timed: dict[bool, tuple[Timed, int]] = {}  # by whether weights are cold

    def open(self, library: str | None = None) -> dict[str, Any]:
        """Load the library; ``version`` names its file too. Raises UnsupportedError for none."""
        self._dnnl = Dnnl(library)
        return {"version": self._dnnl.version}

    def prepare(
        self,
        problem: str,
        layout: str,
        dtype: str,
        threads: int,
        seed: int,
        library: str | None = None,
    ) -> dict[str, Any]:
        """Make inputs, pack weights, and compare the result of every path with the reference.

        The library is loaded as ``open`` does if that has not been done.
        ``refused`` says of settings that the library does not have here why not. Raises
        UnsupportedError where it has none, and CheckError where it computes something else.
        """
        dnnl = self._dnnl = self._dnnl or Dnnl(library)
        layer = parse_problem(problem, layout, dtype)
        self._paths, self._timed = {}, {}  # of the layer before: its memory may be needed
        self._problem = DnnlProblem(dnnl, operator_of(layer), example_inputs(layer, dtype, seed))
        for path in self._problem.paths():
            self._problem.verify(path)
            self._paths[path.name] = path
        refused = self._problem.refused
        if not self._paths:
            reasons = "; ".join(dict.fromkeys(refused.values()))
            raise UnsupportedError(f"oneDNN {dnnl.version} has no {dtype} here: {reasons}")
        return {"version": dnnl.version, "paths": list(self._paths), "refused": refused}

    def load(self, min_sample_s: float, cold_bytes: int = 0) -> dict[str, Any]:
        """Choose the fastest path with x and y in the problem's layout; ``seconds`` has all.

        With ``cold_bytes`` it is made ready for calls with cold weights too.
        """
        timed = {name: self._ready([path]) for name, path in self._paths.items()}
        trials = TimedPaths.of(timed, min_sample_s)
        best = trials.fastest(name for name, path in self._paths.items() if path.plain)
        self._timed = {False: (timed[best], trials.calls[best])}
        if cold_bytes:
            cold = self._ready(self._copies(self._paths[best], cold_bytes))
            self._timed[True] = cold, cold.calls(min_sample_s)
        return {"path": best, "seconds": trials.seconds}

    def sample(self, warm_up_s: float, cold: bool = False) -> dict[str, Any]:
        """One ``Sample``, in seconds a call, after untimed calls of at least ``warm_up_s``."""
        timed, calls = self._timed[cold]
        timed.warm_up(warm_up_s)
        seconds, shares = observe(lambda: timed.seconds(calls))
        return {"seconds": seconds, **shares}

    def _copies(self, path: DnnlPath, cold_bytes: int) -> list[DnnlPath]:
        """The path on copies of its weights."""
        count = count_copies(path.weights.data.nbytes, cold_bytes)
        weights = [self._problem.copy_weights(path) for _ in range(count - 1)]
        return [path, *map(path.with_weights, weights)]

    def _ready(self, copies: Sequence[DnnlPath]) -> Timed:
        """A path to be timed, its copies one after the other."""
        assert self._dnnl is not None
        calls = [self._dnnl.call(path.steps) for path in copies]
        arguments = cycle([args for args, _ in calls])
        return Timed(Host(), self._dnnl.execute, arguments, (copies, calls))


@dataclass(frozen=True, slots=True)
class DnnlPath:
    """A way to compute: primitives that take x to y, and w: packed ahead where it is constant.

    ``ahead`` brings x into the format that ``steps`` read, and ``after`` y into the problem's;
    both are empty where ``steps`` do all of it.
    """

    name: str
    steps: tuple[Execution, ...]
    weights: DnnlMemory
    ahead: tuple[Execution, ...] = ()
    after: tuple[Execution, ...] = ()

    @property
    def plain(self) -> bool:
        """Return whether x and y have the problem's layout."""
        return not (self.ahead or self.after)

    def with_weights(self, weights: DnnlMemory) -> Self:
        """Return the same on another copy of the packed weights."""
        steps = [
            Execution(
                step.primitive,
                {
                    number: weights if memory is self.weights else memory
                    for number, memory in step.arguments.items()
                },
            )
            for step in self.steps
        ]
        return replace(self, steps=tuple(steps), weights=weights)


@dataclass(frozen=True, slots=True)
class _Setting:
    """The attributes that a primitive descriptor is asked for with."""

    element: str
    formats: Formats
    algorithm: str
    scratchpad: int


class DnnlProblem:
    """A problem's x, w and y in memory of the library's, in the problem's formats."""

    def __init__(self, dnnl: Dnnl, operator: DnnlOperator, inputs: ExampleInputs) -> None:
        self.dnnl, self.operator, self.inputs = dnnl, operator, inputs
        self._x_form, self._w_form, self._y_form = (
            dnnl.dense_format(operand.dims, element, operand.order)
            for operand, element in zip(operator.operands.values(), inputs.elements, strict=True)
        )
        self._x = dnnl.memory(self._x_form, inputs.x, _X)
        self._w = dnnl.memory(self._w_form, inputs.w, _W)
        self._y = dnnl.room(self._y_form, _Y)
        self._scales = self._scales_of_output()
        self._taken: list[tuple[_Setting, str, Handle]] = []
        self.refused: dict[str, str] = {}

    def paths(self) -> Iterator[DnnlPath]:
        """Every way that the library has here, each once; ``refused`` has the others."""
        integer = DTYPES[self._type].integer
        elements = (self._type,) if integer else dict.fromkeys((self._type, "f32"))
        operator = self.operator
        settings = product(elements, operator.formats, operator.algorithms, _SCRATCHPADS)
        for setting in (_Setting(*choices) for choices in settings):
            try:
                descriptor = self._descriptor(setting)
                if self._is_new(setting, descriptor):
                    yield from self._paths_of(setting, descriptor)
            except UnsupportedError as error:
                self.refused[self._describe(setting)] = str(error)

    def verify(self, path: DnnlPath) -> None:
        """Run it. Raises UnsupportedError where it fails, CheckError for another result."""
        self._y.data[:] = 0xFF
        self._run(*path.ahead, *path.steps, *path.after)
        element = DTYPES[self.inputs.elements[2]]
        stored = self._y.data.view(element.numpy).reshape(self.inputs.expected.shape)
        result: NDArray[Any] = values(stored, element).astype(np.float64)
        if wrong := fault(result, self.inputs.expected, element.name):
            raise CheckError(f"{path.name}: {wrong}")

    def copy_weights(self, path: DnnlPath) -> DnnlMemory:
        """Other memory with the same packed weights."""
        return self.dnnl.memory(self.dnnl.held_format(path.weights), path.weights.data, _W)

    @property
    def _type(self) -> str:
        return self.inputs.elements[0]

    def _scales_of_output(self) -> dict[int, DnnlMemory]:
        """The scales of the output channels, by the attribute's argument; none of real numbers."""
        scale = self.inputs.scale
        if scale is None or self.inputs.elements[2] == "s32":
            return {}
        form = self.dnnl.dense_format([scale.size], "f32", [0])
        scaled = self.operator.operands["w"].argument
        return {api.SCALES + scaled: self.dnnl.memory(form, scale)}

    def _descriptor(self, setting: _Setting) -> Handle:
        dnnl, operator = self.dnnl, self.operator
        rows = zip(
            operator.operands.values(), setting.formats, self._elements(setting), strict=True
        )
        forms = {
            operand.argument: dnnl.any_format(operand.dims, element)
            if order is None
            else dnnl.dense_format(operand.dims, element, order)
            for operand, order, element in rows
        }
        scales = {argument - api.SCALES: operator.scale_mask for argument in self._scales}
        attributes = dnnl.attributes(setting.scratchpad, scales, operator.activation)
        return operator.create(dnnl, setting.algorithm, forms, attributes)

    def _elements(self, setting: _Setting) -> tuple[str, str, str]:
        own = self.inputs.elements
        return own if setting.element == own[0] else (setting.element,) * 3

    def _is_new(self, setting: _Setting, descriptor: Handle) -> bool:
        """Return whether no earlier setting led to the same primitive; a scratchpad must be there.

        Raises UnsupportedError for plain loops, which can take minutes.
        """
        dnnl, name = self.dnnl, self.dnnl.implementation(descriptor)
        if name.startswith(_PLAIN_LOOPS):
            raise UnsupportedError(f"{name} alone, plain loops")
        own_scratchpad = setting.scratchpad == api.USER_SCRATCHPAD
        if own_scratchpad and not dnnl.size(dnnl.format_of(descriptor, api.SCRATCHPAD_MD)):
            return False
        for other, its_name, its_descriptor in self._taken:
            formats = (
                (dnnl.format_of(descriptor, which), dnnl.format_of(its_descriptor, which))
                for which in map(self._query, "xwy")
            )
            alike = other.scratchpad == setting.scratchpad and name == its_name
            if alike and all(dnnl.same(*pair) for pair in formats):
                return False
        self._taken.append((setting, name, descriptor))
        return True

    def _paths_of(self, setting: _Setting, descriptor: Handle) -> Iterator[DnnlPath]:
        """Yield paths in the problem's layout, and in the library's where that differs."""
        dnnl = self.dnnl
        forms = [dnnl.format_of(descriptor, self._query(name)) for name in "xwy"]
        x, x_before = self._reorder(self._x_form, self._x, forms[0], _X)
        w, w_before = self._reorder(self._w_form, self._w, forms[1], _W)
        y, after = self._reorder(self._y_form, self._y, forms[2], _Y, back=True)
        packed = w
        if self.operator.packed:
            self._run(*w_before)
            w_before = ()
        elif w_before:
            packed = self._w
        roles = [operand.argument for operand in self.operator.operands.values()]
        arguments = dict(zip(roles, (x, w, y), strict=True)) | self._scales
        if setting.scratchpad == api.USER_SCRATCHPAD:
            scratchpad = dnnl.format_of(descriptor, api.SCRATCHPAD_MD)
            arguments[api.SCRATCHPAD] = dnnl.room(scratchpad, _SCRATCH)
        name = f"{dnnl.implementation(descriptor)}{self._note(setting)}"
        compute = (Execution(dnnl.primitive(descriptor), arguments),)
        before = (*x_before, *w_before)
        moves = zip("xwy", (x_before, w_before, after), self._format_names(setting), strict=True)
        what = " and ".join(f"{name} as {form}" for name, steps, form in moves if steps)
        if not what:
            yield DnnlPath(name, compute, packed)
            return
        whole = (*before, *compute, *after)
        yield DnnlPath(f"{name}, {what}: reordered in the call", whole, packed)
        yield DnnlPath(f"{name}, {what}: reordered ahead and after", compute, packed, before, after)

    def _query(self, name: str) -> int:
        """The query of the memory descriptor of x, w or y."""
        return api.FORMATS[self.operator.operands[name].argument]

    def _format_names(self, setting: _Setting) -> list[str]:
        rows = zip(self.operator.operands.values(), setting.formats, strict=True)
        return [operand.name(order) for operand, order in rows]

    def _describe(self, setting: _Setting) -> str:
        """A setting that the library refuses."""
        formats = zip("xwy", self._format_names(setting), strict=True)
        own = ", scratchpad ahead" if setting.scratchpad == api.USER_SCRATCHPAD else ""
        formats_text = ", ".join(f"{name} {form}" for name, form in formats)
        return f"{setting.algorithm} in {setting.element}, {formats_text}{own}"

    def _note(self, setting: _Setting) -> str:
        own = setting.scratchpad == api.USER_SCRATCHPAD
        notes = [", scratchpad ahead"] if own else []
        notes += [f", computed in {setting.element}"] if setting.element != self._type else []
        notes += [f", {setting.algorithm}"] if setting.algorithm != "direct" else []
        return "".join(notes)

    def _reorder(
        self, plain: Handle, memory: DnnlMemory, form: Handle, offset: int, back: bool = False
    ) -> tuple[DnnlMemory, tuple[Execution, ...]]:
        """Memory in the format of a primitive, and what copies plain memory to it, or ``back``."""
        dnnl = self.dnnl
        if dnnl.same(plain, form):
            return memory, ()
        own = dnnl.room(form, offset)
        ends, pair = ((form, plain), (own, memory)) if back else ((plain, form), (memory, own))
        arguments = dict(zip((api.SRC, api.DST), pair, strict=True))
        return own, (Execution(dnnl.reorder(*ends), arguments),)

    def _run(self, *steps: Execution) -> None:
        arguments, _keep = self.dnnl.call(steps)
        self.dnnl.expect("primitive_execute", self.dnnl.execute(*arguments))
