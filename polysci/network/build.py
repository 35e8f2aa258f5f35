"""The C of a network -> a loaded library with its weights, here or in a process that may crash."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError
from polysci.measure.first_run import has_run, note_run
from polysci.measure.samples import LEAST_SAMPLES, MOST_TURNS, Sample, Samples, is_beaten
from polysci.network.code import Code
from polysci.network.runner import FUNCTIONS, Runner, StatePort, TensorPort, inputs_of, save
from polysci.printers.network import include_header
from polysci.program.passes.arena import state_offsets
from polysci.program.passes.in_place import rows_of_state
from polysci.runtime.backends import backend_named
from polysci.runtime.policy import read_policy
from polysci.runtime.worker_process import WorkerProcess
from polysci.target.target import HOST

WARM_UP_S: Final = 5e-3
SAMPLE_S: Final = 20e-3
EMPTY: Final[Mapping[str, int]] = MappingProxyType({})
TIMEOUT_S: Final = 120.0  # of one answer: packing the weights of the largest models takes some


def library_of(code: Code, flags: Sequence[str] | None = None) -> Path:
    """Return the library of a network, built or found in the cache."""
    symbols = [f"{code.name}_{function}" for function in FUNCTIONS]
    texts = [*include_header(code.files, code.name).values()]
    return backend_named(code.backend).build(
        texts, flags=flags, symbols=symbols, module=code.module
    )


def assembly_of(code: Code, flags: Sequence[str] | None = None) -> dict[str, str]:
    """Return the assembly of a network by the names of its C files. Raises BuildError."""
    texts = include_header(code.files, code.name)
    assembly = backend_named(code.backend).assemble([*texts.values()], flags=flags)
    return dict(zip(texts, assembly, strict=True))


def runner_of(code: Code, flags: Sequence[str] | None = None) -> Runner:
    """Return a network's code, built and loaded with its weights."""
    return load_runner(code, library_of(code, flags))


def load_runner(code: Code, path: Path) -> Runner:
    """Return the library of a network, loaded with its weights."""
    inputs, outputs = ports(code)
    return Runner(
        path, code.name, code.declarations, weights_of(code), inputs, outputs, code.backend,
        code.entry, code.sizes, state_ports(code),
    )  # fmt: skip


def store(code: Code, library: Path, folder: Path) -> None:
    """Write what another process needs to run a network to a folder of its own."""
    arrays = weights_of(code) if code.backend != HOST else ()
    save(folder, library, signature_of(code), code.weights_file.pieces(), arrays)


def weights_of(code: Code) -> list[NDArray[Any]]:
    """Return the arrays with which a network's library is loaded."""
    return [np.ascontiguousarray(part.array) for part in code.weights_file.parts]


def signature_of(code: Code) -> dict[str, Any]:
    """Return what ``runner.restore_runner`` takes, as JSON has it."""
    inputs, outputs = ([asdict(port) for port in its] for its in ports(code))
    return {
        "name": code.name, "declarations": code.declarations, "backend": code.backend,
        "inputs": inputs, "outputs": outputs, "entry": code.entry, "sizes": code.sizes,
        "state": [asdict(port) for port in state_ports(code)],
    }  # fmt: skip


def ports(
    code: Code, sizes: Mapping[str, int] = EMPTY
) -> tuple[tuple[TensorPort, ...], tuple[TensorPort, ...]]:
    """Return inputs and outputs, by the names that the model gives them.

    They are of the largest sizes that runs may be told, but for ``sizes``.
    """
    program = code.placed.program
    values, known = program.values, program.all_sizes(sizes) if sizes else sizes

    def shape(name: str) -> tuple[int, ...]:
        axes = program.varying.get(name, {})
        return tuple(
            known.get(axes.get(at, ""), extent) for at, extent in enumerate(values[name].shape)
        )

    inputs = [
        TensorPort(n, shape(n), values[n].dtype, range=program.ranges.get(n))
        for n in program.arguments
    ]
    dynamic_dims = {
        title: (mark.axis, [*program.results].index(mark.count))
        for title, mark in program.dynamic_dims.items()
    }
    outputs = [
        TensorPort(
            title,
            shape(n),
            values[n].dtype,
            dynamic_dims.get(title),
            most=program.data_sizes.most if title == program.data_sizes.output else (),
        )
        for title, n in program.results.items()
    ]
    return tuple(inputs), tuple(outputs)


def state_ports(code: Code) -> tuple[StatePort, ...]:
    """Return the state of a network's contexts."""
    program = code.placed.program
    offsets, _ = state_offsets(program)
    return tuple(
        StatePort(
            name,
            program.values[held].shape,
            program.values[held].dtype,
            offsets[held],
            name == program.counter,
            rows_of_state(program) if name == program.counter else None,
        )
        for name, held in program.kept.items()
    )


class NetworkProcess(WorkerProcess):
    """A built network in a worker process, ready to be timed on made-up inputs."""

    def __init__(self, code: Code, library: Path, threads: int) -> None:
        super().__init__("polysci.network.service", threads=threads, env={}, timeout=TIMEOUT_S)
        try:
            self.start()
            with tempfile.TemporaryDirectory(prefix="polysci-") as name:
                self._load(code, library, Path(name))
        except BaseException:
            self.close()
            raise

    def _load(self, code: Code, library: Path, folder: Path) -> None:
        inputs: Mapping[str, NDArray[Any]] = inputs_of(ports(code)[0])
        np.savez(folder / "inputs.npz", *inputs.values())
        store(code, library, folder)
        paths = {"folder": str(folder), "inputs": str(folder / "inputs.npz")}
        self.ask({"op": "load", **paths, "outputs": str(folder / "outputs.npz")})

    def sample(self) -> Sample:
        """Take one sample, in seconds a run, after a warm-up."""
        request = {"warm_up_s": WARM_UP_S, "min_sample_s": SAMPLE_S}
        return Sample(**self.ask({"op": "sample", **request}))


def check_first_run(code: Code, library: Path, threads: int) -> None:
    """Run a built network once in a process of its own, unless it ran or the policy says not to.

    Drivers of devices compile kernels for good when they first run.

    Raises CheckError where it crashes or hangs.
    """
    measured = backend_named(code.backend).measured
    if not measured or has_run(library) or not read_policy().first_runs:
        return
    try:
        NetworkProcess(code, library, threads).close()
    except CheckError as error:
        raise CheckError(
            f"network {code.name}: its first run, in a process of its own, failed: {error}; "
            "to go without: verify=False"
        ) from error
    note_run(library)


def time_networks(built: Sequence[tuple[Code, Path]], threads: int, samples: int) -> list[Samples]:
    """Take samples of each in turns; one that is beaten gets no further turn.

    Raises CheckError where one crashes or hangs.
    """
    taken = [Samples() for _ in built]
    with ExitStack() as stack:
        running = [
            stack.enter_context(NetworkProcess(code, library, threads)) for code, library in built
        ]
        for _ in range(MOST_TURNS * max(samples, LEAST_SAMPLES)):
            for process, its in zip(running, taken, strict=True):
                if not its.enough(samples) and not (len(built) > 1 and is_beaten(its, taken)):
                    its.add(process.sample())
    return taken
