"""The ways to convolve: formats, algorithms, scratchpads, and types of 16 bits or f32 for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError, UnsupportedError
from polysci.measure.timed_calls import PAGE_OFFSETS
from polysci.numerics.dtypes import DTYPES, values
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d.rules import AXES, span
from polysci.peers.example_inputs import ExampleInputs, fault
from polysci.peers.onednn import declarations as api
from polysci.peers.onednn.library import Dnnl, DnnlMemory, Execution, Handle

Order = tuple[int, ...]
_ORDERS: Final[Mapping[str, Order]] = MappingProxyType({"nhwc": (0, 2, 3, 1), "nchw": (0, 1, 2, 3)})
# Formats of x and of y; None is the library's choice.
_FORMATS: Final[Mapping[str, tuple[tuple[str | None, str | None], ...]]] = MappingProxyType(
    {
        "nhwc": (("nhwc", "nhwc"), (None, None)),
        "nchw": (("nchw", "nchw"), ("nchw", None), (None, None), ("nhwc", "nhwc")),
    }
)
_PLAIN_LOOPS: Final = "ref"  # of the implementations' names
_SCRATCHPADS: Final = (api.LIBRARY_SCRATCHPAD, api.USER_SCRATCHPAD)
_X, _Y, _W, _SCRATCH = PAGE_OFFSETS


@dataclass(frozen=True, slots=True)
class DnnlPath:
    """A way to compute: primitives that take x to y, and weights packed ahead.

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
        """Whether x and y have the problem's layout."""
        return not (self.ahead or self.after)

    def with_weights(self, weights: DnnlMemory) -> Self:
        """The same on another copy of the packed weights."""
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
    """What a primitive descriptor is asked for with."""

    element: str
    formats: tuple[str | None, str | None]
    algorithm: str
    scratchpad: int

    def __str__(self) -> str:
        x, y = (form or "any" for form in self.formats)
        own = ", scratchpad ahead" if self.scratchpad == api.USER_SCRATCHPAD else ""
        return f"{self.algorithm} in {self.element}, x {x}, y {y}{own}"


class DnnlConvolution:
    """A convolution's x, w and y in memory of the library's, in the problem's formats."""

    def __init__(self, dnnl: Dnnl, conv: Conv2d, inputs: ExampleInputs) -> None:
        self.dnnl, self.conv, self.inputs = dnnl, conv, inputs
        self._x_form = self._form(inputs.elements[0], conv.layout, "x")
        self._w_form = dnnl.strided(self._w_dims, inputs.elements[1], range(len(self._w_dims)))
        self._y_form = self._form(inputs.elements[2], conv.layout, "y")
        self._x = dnnl.memory(self._x_form, inputs.x, _X)
        self._w = dnnl.memory(self._w_form, inputs.w)
        self._y = dnnl.room(self._y_form, _Y)
        self._quantities = dict(self._quantised())
        self._taken: list[tuple[_Setting, str, Handle]] = []
        self.refused: dict[str, str] = {}

    def paths(self) -> Iterator[DnnlPath]:
        """Every way that the library has here, each once; ``refused`` has the others."""
        integer = DTYPES[self._own].integer
        elements = (self._own,) if integer else dict.fromkeys((self._own, "f32"))
        settings = product(elements, _FORMATS[self.conv.layout], api.ALGORITHMS, _SCRATCHPADS)
        for setting in (_Setting(*choices) for choices in settings):
            try:
                descriptor = self._descriptor(setting)
                if self._is_new(setting, descriptor):
                    yield from self._paths_of(setting, descriptor)
            except UnsupportedError as error:
                self.refused[str(setting)] = str(error)

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
    def _own(self) -> str:
        return self.inputs.elements[0]

    @property
    def _w_dims(self) -> tuple[int, ...]:
        conv, groups = self.conv, self.conv.groups
        dims = conv.K // groups, conv.C // groups, conv.R, conv.S
        return dims if groups == 1 else (groups, *dims)

    def _form(self, element: str, layout: str | None, operand: str) -> Handle:
        conv = self.conv
        dims = {"x": (conv.N, conv.C, conv.H, conv.W), "y": (conv.N, conv.K, conv.P, conv.Q)}
        if layout is None:
            return self.dnnl.any_format(dims[operand], element)
        return self.dnnl.strided(dims[operand], element, _ORDERS[layout])

    def _quantised(self) -> Iterator[tuple[int, DnnlMemory]]:
        """Scales of the output channels and zero points, by the attribute's argument."""
        quant = self.inputs.quant
        if quant is None:
            return
        if self.inputs.elements[2] != "s32":
            form = self.dnnl.strided([self.conv.K], "f32", [0])
            yield api.SCALES + api.WEIGHTS, self.dnnl.memory(form, quant.scale)
        for argument, zero in ((api.SRC, quant.x_zero), (api.DST, quant.y_zero)):
            if zero:
                form = self.dnnl.strided([1], "s32", [0])
                memory = self.dnnl.memory(form, np.array([zero], np.int32))
                yield api.ZERO_POINTS + argument, memory

    def _descriptor(self, setting: _Setting) -> Handle:
        dnnl, conv, (x, w, y) = self.dnnl, self.conv, self._elements(setting)
        after = [
            (getattr(conv, out) - 1) * conv.stride[axis]
            + span(getattr(conv, taps), conv.dilation[axis])
            - getattr(conv, size)
            - conv.pad[axis]
            for size, taps, out, axis in AXES
        ]
        mask = 1 if conv.groups == 1 else 3  # output channels, of groups and in them
        scales = {api.WEIGHTS: mask} if api.SCALES + api.WEIGHTS in self._quantities else {}
        zeros = [number for number in (api.SRC, api.DST) if self._has_zero(number)]
        return dnnl.create(
            "primitive_desc", "convolution_forward_primitive_desc_create", dnnl.engine,
            api.FORWARD_INFERENCE, api.ALGORITHMS[setting.algorithm],
            self._form(x, setting.formats[0], "x"), dnnl.any_format(self._w_dims, w),
            dnnl.ffi.NULL, self._form(y, setting.formats[1], "y"), list(conv.stride),
            [step - 1 for step in conv.dilation], list(conv.pad), after,
            dnnl.attributes(setting.scratchpad, scales, zeros),
        )  # fmt: skip

    def _has_zero(self, argument: int) -> bool:
        return api.ZERO_POINTS + argument in self._quantities

    def _elements(self, setting: _Setting) -> tuple[str, str, str]:
        own = self.inputs.elements
        return own if setting.element == own[0] else (setting.element,) * 3

    def _is_new(self, setting: _Setting, descriptor: Handle) -> bool:
        """Whether no earlier setting led to the same primitive; a scratchpad must be there.

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
                for which in (api.SRC_MD, api.WEIGHTS_MD, api.DST_MD)
            )
            alike = other.scratchpad == setting.scratchpad and name == its_name
            if alike and all(dnnl.same(*pair) for pair in formats):
                return False
        self._taken.append((setting, name, descriptor))
        return True

    def _paths_of(self, setting: _Setting, descriptor: Handle) -> Iterator[DnnlPath]:
        """With x and y in the problem's layout; and in the library's, where that differs."""
        dnnl = self.dnnl
        forms = (dnnl.format_of(descriptor, md) for md in (api.SRC_MD, api.WEIGHTS_MD, api.DST_MD))
        src, weights, dst = forms
        x, before = self._moved(self._x_form, self._x, src, _X)
        w = dnnl.room(weights, _W)
        self._run(Execution(dnnl.reorder(self._w_form, weights), {api.SRC: self._w, api.DST: w}))
        y, after = self._moved(self._y_form, self._y, dst, _Y, back=True)
        arguments = {api.SRC: x, api.WEIGHTS: w, api.DST: y, **self._quantities}
        name = dnnl.implementation(descriptor)
        if setting.scratchpad == api.USER_SCRATCHPAD:
            scratchpad = dnnl.format_of(descriptor, api.SCRATCHPAD_MD)
            arguments[api.SCRATCHPAD] = dnnl.room(scratchpad, _SCRATCH)
            name += ", scratchpad ahead"
        name += f", computed in {setting.element}" if setting.element != self._own else ""
        name += f", {setting.algorithm}" if setting.algorithm != "direct" else ""
        compute = (Execution(dnnl.primitive(descriptor), arguments),)
        moved = [
            (operand, form)
            for operand, form, steps in zip("xy", setting.formats, (before, after), strict=True)
            if steps
        ]
        if not moved:
            yield DnnlPath(name, compute, w)
            return
        what = " and ".join(f"{operand} as {form or 'any'}" for operand, form in moved)
        yield DnnlPath(f"{name}, {what}: reordered in the call", (*before, *compute, *after), w)
        yield DnnlPath(f"{name}, {what}: reordered ahead and after", compute, w, before, after)

    def _moved(
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
        words, _keep = self.dnnl.call(steps)
        self.dnnl.expect("primitive_execute", self.dnnl.execute(*words))
