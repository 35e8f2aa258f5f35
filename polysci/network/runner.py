"""A compiled network as a Python callable: NumPy in, NumPy out; inputs to try it with."""

from __future__ import annotations

import ctypes
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from math import ceil, floor, inf, prod
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from polysci.border.files import open_stored
from polysci.errors import SizeError, SpecError
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import DTYPES, array_type, to_bf16
from polysci.program.stages import GUESSED, ValueRange
from polysci.runtime.arguments import check_array, view_bits
from polysci.runtime.backend import Argument, DeviceLibrary, DeviceNetwork
from polysci.runtime.backends import backend_named
from polysci.target.target import HOST

Array = NDArray[Any]
SHORT: Final = 4096  # bytes of a result: lines that its vectors cross cost less than to align it
_ndarray, _empty = np.ndarray, np.empty  # so many look-ups less a call
# Of the library of a network NAME: it defines NAME_load, and so on.
FUNCTIONS: Final = (
    *("load", "load_parts", "unload", "model_size", "model_data"),
    *("new", "free", "run", "context_size"),
)


@dataclass(frozen=True, slots=True)
class TensorPort:
    """An input or output: its name in the model, shape and element type, as a tensor's.

    Arrays of ``bf16`` are uint16, its bits.
    ``dynamic_dim``: the axis of an output along which data decides the length, whose extent is the
    most that can be, and the place among the outputs of that which says how many there are.
    ``range``: which numbers an example of an input may hold, where not any.
    ``most``: of an output that holds sizes which data decides, their names and the most of each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dynamic_dim: tuple[int, int] | None = None
    range: ValueRange | None = None
    most: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StatePort:
    """A tensor that a run leaves to the next one, and where it lies in the state, in bytes.

    ``counts``: it counts tokens, ``most`` is how many there is room for, if that is limited.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    at: int
    counts: bool = False
    most: int | None = None

    @property
    def bytes(self) -> int:
        return prod(self.shape) * array_type(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class PortAccess:
    """An input or output as calls use it.

    ``pointer`` makes the argument for C. ``room`` is in bytes, for a result that begins a line of
    the cache; 0 for one that is so short that NumPy's own alignment will do.
    """

    port: TensorPort
    shape: tuple[int, ...]
    kind: np.dtype[Any]
    pointer: Callable[[Array], Any]
    room: int

    @staticmethod
    def of(library: DeviceLibrary, port: TensorPort) -> PortAccess:
        kind = array_type(port.dtype)
        size = prod(port.shape) * kind.itemsize
        room = size + aligned.ALIGNMENT - 1 if size > SHORT else 0
        return PortAccess(port, port.shape, kind, library.copy_in(port.dtype), room)

    def check(self, value: object) -> Array:
        """Return an input's array, C-contiguous. Raises TypeError or ValueError that name it."""
        if type(value) is _ndarray and value.dtype is self.kind and value.shape == self.shape:
            array: Array = value
            if array.flags.carray:
                return array
        return check_inputs(self.port, value)

    def at(self, address: int) -> Array:
        """Return the array that lies at an address of the host's memory."""
        size = prod(self.shape) * self.kind.itemsize
        memory: Any = (ctypes.c_char * size).from_address(address) if size else b""
        return np.ndarray(self.shape, self.kind, memory)

    def new(self) -> Array:
        """Return an array for a result."""
        if not self.room:
            return _empty(self.shape, self.kind)
        memory = _empty(self.room, np.uint8)
        start = memory.__array_interface__["data"][0]
        return _ndarray(self.shape, self.kind, memory, -start % aligned.ALIGNMENT)


class Runner:
    """A loaded library of a network: checked calls, one context for each that is under way.

    A network with ``state`` has one context, which keeps it: that of a sequence of runs.

    ``weights`` are their file, or its arrays one by one; ``entry`` is the symbol of the program
    that it runs, in a library of several, and ``sizes`` are what that is told.
    """

    def __init__(
        self,
        library: Path,
        name: str,
        declarations: str,
        weights: Sequence[Array] | Path,
        inputs: Sequence[TensorPort],
        outputs: Sequence[TensorPort],
        backend: str = HOST,
        entry: str = "",
        sizes: Sequence[int] = (),
        state: Sequence[StatePort] = (),
    ) -> None:
        self.name, self.state = name, tuple(state)
        network = backend_named(backend).load_network(library, name, declarations, weights)
        self.library, self._copy_out = network.library, network.library.copy_out
        self.model_bytes, self.context_bytes = network.model_bytes, network.context_bytes
        self._idle: list[Any] = []
        self._take(network.entry(entry, sizes) if entry else network, inputs, outputs)
        self._begin()

    def _begin(self) -> None:
        """Begin a sequence of runs, where a run reads what the last one left."""
        self._sequence = self.network.context() if self.state else None
        self._idle = [self._sequence] if self.state else []

    def _take(
        self, network: DeviceNetwork, inputs: Sequence[TensorPort], outputs: Sequence[TensorPort]
    ) -> None:
        """Run a program of the library, of these inputs and outputs."""
        self.network, self._run = network, network.run
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._inputs, self._outputs = (
            [PortAccess.of(self.library, port) for port in ports]
            for ports in (self.inputs, self.outputs)
        )
        self._single = len(self.inputs) == len(self.outputs) == 1
        self._dynamic = any(port.dynamic_dim or port.most for port in self.outputs)
        self._sizes = next((at for at, port in enumerate(self.outputs) if port.most), None)
        self._names = [port.name for port in self.outputs]
        self._pointers = [access.pointer for access in (*self._inputs, *self._outputs)]

    def entry(
        self, symbol: str, inputs: Sequence[TensorPort], outputs: Sequence[TensorPort],
        sizes: Sequence[int] = (),
    ) -> Runner:  # fmt: skip
        """Return the runner of another program of the library: weights and contexts are shared.

        Its runs are told ``sizes``.
        """
        other = copy(self)
        other._take(self.network.entry(symbol, sizes), inputs, outputs)
        return other

    def packed_weights(self) -> memoryview:
        """Return constants and packed weights as the library reads them, valid with it."""
        return self.network.packed_weights()

    def sequence(self) -> Runner:
        """Return the runner of another sequence of runs, which begins with the first state."""
        if not self.state:
            return self
        other = copy(self)
        other._begin()
        return other

    def join(self, other: Runner) -> Runner:
        """Return the runner whose runs are of the same sequence as those of another one."""
        joined = copy(self)
        joined._sequence, joined._idle = other._sequence, other._idle
        return joined

    def reset(self) -> None:
        """Give the state the values that it has before the first run."""
        if self.state:
            context = self.context()
            self.network.reset(context)
            self.release(context)

    def state_array(self, port: StatePort) -> Array:
        """Return the memory of a tensor of the state, valid with this object."""
        memory = self.network.state(self._sequence, port.at + port.bytes)
        kind = array_type(port.dtype)
        return memory[port.at :].view(kind).reshape(port.shape)

    def context(self) -> Any:
        """Return a context that nobody uses; give it back to ``release``.

        Raises SpecError where a run of the sequence is under way.
        """
        try:  # a suppress() takes half a microsecond
            return self._idle.pop()
        except IndexError:  # more runs are under way than ever before
            if self.state:
                raise SpecError(
                    f"{self.name}: a run of this sequence is under way, and leaves state to the "
                    "next one: sequence() begins another"
                ) from None
            return self.network.context()

    def lasting_context(self) -> Any:
        """Return a context for runs that last: of the sequence, or one that nobody uses."""
        return self._sequence if self.state else self.context()

    def release(self, context: Any) -> None:
        self._idle.append(context)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the network; return outputs in order, for inputs in order."""
        results = self.results()
        self.into(arrays, results)
        return results

    def run_in_order(self, inputs: Sequence[object]) -> list[Array]:
        """Run a caller's arrays, each checked."""
        return self([access.check(x) for access, x in zip(self._inputs, inputs, strict=True)])

    def call(self, inputs: object, out: object = None) -> Any:
        """Run checked arrays; return one array for one, else arrays by name."""
        if type(inputs) is _ndarray and out is None and self._single:
            (read,), (written,) = self._inputs, self._outputs
            x, y = read.check(inputs), written.new()
            context = self.context()  # where a pointer cannot be made it is given back for good
            y_at = written.pointer(y)
            self._run(context, read.pointer(x), y_at)
            if self._copy_out:
                self._copy_out(y_at, y)
            self._idle.append(context)
            return y
        arrays = self.order(inputs)
        if out is not None:
            results = self.targets(out, arrays)
            self.into(arrays, results)
            self.check_sizes(results)
            return out
        results = self(arrays)
        self.check_sizes(results)
        if self._dynamic:
            outputs = cut_results(self.outputs, results)
        else:
            outputs = dict(zip(self._names, results, strict=True))
        if len(outputs) == 1 and not _is_mapping(inputs):
            return next(iter(outputs.values()))
        return outputs

    def check_sizes(self, results: Sequence[Array]) -> None:
        """Raise SizeError where data asked for more than a run has room for."""
        if self._sizes is None:
            return
        rows = zip(self.outputs[self._sizes].most, results[self._sizes].tolist(), strict=True)
        for (name, most), size in rows:
            if size > most:
                hint = f": compile it for more, as with most={{{name!r}: {size}}}"
                raise SizeError(
                    f"{self.name}: {name}: this run needs at least {size}, and most is {most}"
                    f"{hint * (size < 1 << 31)}"
                )

    def order(self, inputs: object) -> list[Array]:
        """Return checked inputs in order. Raises TypeError or ValueError that name them."""
        return _order(self._inputs, inputs, "inputs")

    def targets(self, out: object, arrays: Sequence[Array]) -> list[Array]:
        """Return a caller's arrays for the outputs in order, checked. Raises as ``order``."""
        results = _order(self._outputs, out, "out")
        for at, (port, result) in enumerate(zip(self.outputs, results, strict=True)):
            if result is not array_of(port, out) or not result.flags.carray:
                raise ValueError(
                    f"out: {port.name}: expected a writable, aligned, C-contiguous numpy.ndarray"
                )
            for other in (*arrays, *results[:at]):
                if np.may_share_memory(result, other):
                    raise ValueError(f"out: {port.name}: expected memory apart from other arrays")
        return results

    def run_with(
        self, held: Mapping[str, Argument], inputs: Mapping[str, object]
    ) -> dict[str, Array]:
        """Return the outputs by name; ``held`` are inputs that lie in the device's memory."""
        others = [access for access in self._inputs if access.port.name not in held]
        arrays = _order(others, dict(inputs), "inputs")
        copied = {its.port.name: its.pointer(x) for its, x in zip(others, arrays, strict=True)}
        results, context = self.results(), self.context()
        places = [own.pointer(array) for own, array in zip(self._outputs, results, strict=True)]
        known = {**held, **copied}
        self._run(context, *(known[port.name] for port in self.inputs), *places)
        self._keep(places, results)
        self.release(context)
        return dict(zip(self._names, results, strict=True))

    def bind_memory(
        self, context: Any, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> Callable[[], None]:
        """Return what runs the network in the device's memory, each time it is called."""
        return partial(self._run, context, *inputs, *outputs)

    def results(self) -> list[Array]:
        """Return arrays for the outputs of a run."""
        return [access.new() for access in self._outputs]

    def into(self, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        """Run into arrays that are there; all are of the right shapes and types."""
        context = self.context()
        try:
            self.run_in(context, arrays, results)
        finally:
            self._idle.append(context)

    def run_at(self, addresses: Sequence[int]) -> None:
        """Run on memory at addresses, of inputs and then outputs; nothing is checked.

        It is C-contiguous, of the ports' shapes and types; outputs lie apart from all others. It is
        the device's; one without addresses copies what lies in the host's memory.
        """
        if self.network.run_at is None:
            accesses = (*self._inputs, *self._outputs)
            arrays = [its.at(place) for its, place in zip(accesses, addresses, strict=True)]
            count = len(self._inputs)
            return self.into(arrays[:count], arrays[count:])
        context = self.context()
        try:
            self.network.run_at(context, *addresses)
        finally:
            self._idle.append(context)
        return None

    def on(self, stream: int) -> Runner:
        """Return the runner whose runs a queue of the caller's takes, and nobody waits for."""
        other = copy(self)
        other.network = self.network.on(stream)
        other.library, other._run, other._idle = other.network.library, other.network.run, []
        return other

    def run_in(self, context: Any, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        """Run the network in a given context, into arrays that are there."""
        arguments = [*map(_point, self._pointers, (*arrays, *results))]
        self._run(context, *arguments)
        self._keep(arguments[len(arrays) :], results)

    def _keep(self, arguments: Sequence[Argument], results: Sequence[Array]) -> None:
        """Copy results out of a device's memory, where it is not shared."""
        if self._copy_out:
            for argument, result in zip(arguments, results, strict=True):
                self._copy_out(argument, result)

    def bind(
        self, context: Any, arrays: Sequence[Array], results: Sequence[Array]
    ) -> Callable[[], None]:
        """Return what runs the network on these very arrays, each time it is called."""
        if self._copy_out:
            return partial(self.run_in, context, arrays, results)
        return partial(self._run, context, *map(_point, self._pointers, (*arrays, *results)))

    def time_stages(self, stages: int, runs: int, warm_up: int) -> list[list[float]]:
        """Run on made-up inputs; return when each stage of a run began and ended.

        ``warm_up`` runs go ahead of those that count. The code must time itself.
        """
        inputs, context = inputs_of(self.inputs), self.context()
        run = self.bind(context, [inputs[port.name] for port in self.inputs], self.results())
        times = []
        for _ in range(warm_up + runs):
            run()
            times.append(self.network.stage_times(context, stages))
        self.release(context)
        return times[warm_up:]

    def stage_seconds(self, context: Any, stages: int) -> list[float]:
        """Return seconds of each stage in the context's last run; the code must time itself."""
        times = self.network.stage_times(context, stages)
        return [end - start for start, end in pairwise(times)]


def _point(pointer: Callable[[Array], Any], array: Array) -> Any:
    return pointer(array)


def _is_mapping(arrays: object) -> bool:
    return type(arrays) is dict or (type(arrays) is not _ndarray and isinstance(arrays, Mapping))


def array_of(port: TensorPort, arrays: Any) -> object:
    """Return the array of a caller for an input or output, itself or out of a mapping by name."""
    return arrays[port.name] if _is_mapping(arrays) else arrays


def _order(accesses: Sequence[PortAccess], arrays: Any, what: str) -> list[Array]:
    """Do what ``order_inputs`` does, in half of its time where nothing is wrong."""
    if type(arrays) is _ndarray and len(accesses) == 1:
        return [accesses[0].check(arrays)]
    if type(arrays) is dict and len(arrays) == len(accesses):
        try:
            return [access.check(arrays[access.port.name]) for access in accesses]
        except KeyError:  # which ``order_inputs`` explains
            pass
    return order_inputs([access.port for access in accesses], arrays, what)


def check_inputs(port: TensorPort, value: object) -> Array:
    """Return the array of an input, C-contiguous. Raises TypeError or ValueError that name it."""
    bits = port.dtype == "bf16"
    array = check_array(
        port.name, view_bits(value, DTYPES["bf16"]) if bits else value, "a NumPy array"
    )
    if array.dtype != (kind := array_type(port.dtype)):
        how = " (the bits of bf16; polysci.to_bf16 makes them)" if bits else ""
        raise TypeError(f"{port.name}: expected dtype {kind}{how}, got {array.dtype}")
    if array.shape != port.shape:
        raise ValueError(f"{port.name}: expected shape {port.shape}, got {array.shape}")
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, requirements=("C", "A"))


def cut_results(ports: Sequence[TensorPort], results: Sequence[Array]) -> dict[str, Array]:
    """Return outputs of the model by name, as long as their counts say.

    Counts are left out, and so are sizes.
    """
    counts = {port.dynamic_dim[1] for port in ports if port.dynamic_dim}
    counts |= {place for place, port in enumerate(ports) if port.most}
    outputs = dict[str, Array]()
    for place, (port, array) in enumerate(zip(ports, results, strict=True)):
        if port.dynamic_dim:
            axis, count = port.dynamic_dim
            array = array[(slice(None),) * axis + (slice(int(results[count])),)]
        if place not in counts:
            outputs[port.name] = array
    return outputs


def order_inputs(ports: Sequence[TensorPort], inputs: object, what: str = "inputs") -> list[Array]:
    """Return the inputs in order, from one array, or from a mapping by name."""
    if isinstance(inputs, Mapping):
        names = {port.name for port in ports}
        if set(inputs) != names:
            raise ValueError(f"{what}: expected {sorted(names)}, got {sorted(map(str, inputs))}")
        return [check_inputs(port, inputs[port.name]) for port in ports]
    if len(ports) != 1:
        raise TypeError(
            f"{what}: this network has {len(ports)}: give a dict of {[p.name for p in ports]}"
        )
    return [check_inputs(ports[0], inputs)]


_SIGNATURE, _WEIGHTS, _ARRAYS = "signature.json", "weights", "weights.npz"


def save(
    folder: Path,
    library: Path,
    signature: Mapping[str, Any],
    weights: Iterable[bytes | memoryview],
    arrays: Sequence[Array] = (),
) -> None:
    """Write a network into a directory of its own; the library stays in the cache.

    ``signature`` is that of ``build.signature_of``, ``weights`` are the pieces of their file; a
    device, which reads no files, takes ``arrays``.
    """
    if signature["backend"] == HOST:
        with (folder / _WEIGHTS).open("wb") as file:
            file.writelines(weights)
    else:
        np.savez(folder / _ARRAYS, *arrays)
    text = json.dumps({"library": str(library), **signature})
    (folder / _SIGNATURE).write_text(text, encoding="utf-8")


def restore(folder: Path) -> Runner:
    """Return the network that ``save`` wrote."""
    signature = json.loads((folder / _SIGNATURE).read_text(encoding="utf-8"))
    weights: Sequence[Array] | Path = folder / _WEIGHTS
    if signature["backend"] != HOST:
        with np.load(folder / _ARRAYS) as file:
            weights = [file[f"arr_{index}"] for index in range(len(file.files))]
    return restore_runner(Path(signature["library"]), signature, weights)


def restore_runner(
    library: Path, signature: Mapping[str, Any], weights: Sequence[Array] | Path
) -> Runner:
    """Return a network of a library, what ``signature_of`` tells of it, and its weights."""
    inputs, outputs = (
        [
            TensorPort(
                port["name"],
                tuple(port["shape"]),
                port["dtype"],
                tuple(port["dynamic_dim"]) if port["dynamic_dim"] else None,
                _range_of(port["range"]),
                tuple((name, most) for name, most in port["most"]),
            )
            for port in signature[which]
        ]
        for which in ("inputs", "outputs")
    )
    return Runner(
        library, signature["name"], signature["declarations"], weights, inputs, outputs,
        signature.get("backend", HOST), signature.get("entry", ""), signature.get("sizes", ()),
        [StatePort(**{**port, "shape": tuple(port["shape"])}) for port in signature["state"]],
    )  # fmt: skip


def _range_of(fields: Mapping[str, Any] | None) -> ValueRange | None:
    return None if fields is None else ValueRange(**{**fields, "without": tuple(fields["without"])})


MOST: Final = 3  # the greatest whole number where nothing binds one


def inputs_of(ports: Sequence[TensorPort], seed: int = 0) -> dict[str, Array]:
    """Return an array for each input, by its name; the same seed gives the same numbers.

    Real numbers are normally distributed, whole ones of 8 bits any, others 0 to MOST, as far as the
    ports' ranges permit; positions, by the name of the input, count from 0.
    """
    random = np.random.default_rng(seed)
    return {port.name: _example(port, random) for port in ports}


def load_inputs(path: str | PathLike[str], ports: Sequence[TensorPort]) -> dict[str, Array]:
    """Return the arrays of an .npz file, by the names of the inputs.

    Raises SpecError that names the file and what it lacks, has too much, or has of another type or
    shape. ``arr_0`` and so on, as numpy.savez calls arrays without names, are the inputs in order.
    """
    source = f"{str(path)!r:.200}"
    try:
        with open_stored(path) as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise SpecError(f"input {source}: expected an .npz file of arrays, not one array")
            with file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise SpecError(f"input {source}: expected an .npz file of arrays: {error}") from None
    names = [port.name for port in ports]
    numbered = [f"arr_{at}" for at in range(len(names))]
    if set(arrays) == set(numbered) != set(names):
        arrays = {name: arrays[number] for name, number in zip(names, numbered, strict=True)}
    for what, wrong in (("lacks", [*names]), ("has no use for", [*arrays])):
        others = arrays if what == "lacks" else names
        if missing := [name for name in wrong if name not in others]:
            raise SpecError(
                f"input {source}: {what} {missing[0]!r:.200}; expected arrays {names!r:.400}"
            )
    try:
        return {port.name: check_inputs(port, arrays[port.name]) for port in ports}
    except (TypeError, ValueError) as error:
        raise SpecError(f"input {source}: {error}") from None


def _example(port: TensorPort, random: np.random.Generator) -> Array:
    kind = array_type(port.dtype)
    real = kind.kind == "f" or port.dtype == "bf16"
    allowed = port.range or ValueRange()
    if (real or kind.kind == "b") and allowed.weight == GUESSED:
        allowed = ValueRange()  # a comparison need not make a mask of it
    if real and not allowed.whole:
        values = _reals(allowed, port.shape, random)
    else:
        values = _whole_numbers(port, allowed, random)
    return to_bf16(values) if port.dtype == "bf16" else values.astype(kind)


def _reals(allowed: ValueRange, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Return normal numbers, or such on one side of a limit, or even ones between two."""
    if allowed.single:
        return np.full(shape, allowed.low)
    if -inf < allowed.low and allowed.high < inf:
        return random.uniform(allowed.low, allowed.high, shape)
    normal = random.standard_normal(shape)
    if -inf < allowed.low:
        return allowed.low + np.abs(normal)
    return allowed.high - np.abs(normal) if allowed.high < inf else normal


def _whole_numbers(port: TensorPort, allowed: ValueRange, random: np.random.Generator) -> Array:
    low, high = _limits(port, allowed)
    if (
        "position" in port.name.lower()
        and port.shape
        and low <= 0 < port.shape[-1] <= allowed.high + 1
    ):
        return np.broadcast_to(np.arange(port.shape[-1]), port.shape)
    values = random.integers(low, high, port.shape, endpoint=True)
    if not allowed.without:
        return values
    other = next(value for value in count(low) if value not in allowed.without)
    return np.where(np.isin(values, allowed.without), other, values)


def _limits(port: TensorPort, allowed: ValueRange) -> tuple[int, int]:
    """Return the least and the greatest whole number of an input."""
    kind = array_type(port.dtype)
    least, most = (0, 1) if kind.kind == "b" else (0, MOST)
    if kind.kind in "iu" and kind.itemsize == 1:
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if allowed.without and (allowed.low, allowed.high) == (-inf, inf):
        least, most = 0, max(1, floor(max(allowed.without)))
    if -inf < allowed.low:
        least = ceil(allowed.low)
        most = least + MOST
    if allowed.high < inf:
        most = floor(allowed.high)
        least = least if -inf < allowed.low else min(0, most)
    if least < 0 <= most and -inf < allowed.low < allowed.high:
        least = 0  # a place, of which some part of an expression counts from further ahead
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        least, most = (min(max(value, limits.min), limits.max) for value in (least, most))
    if kind.kind == "b":
        least, most = (min(max(value, 0), 1) for value in (least, most))
    return int(least), int(max(least, most))
