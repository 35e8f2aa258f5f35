"""CUDA on this CPU: kernels as polysci prints them, compiled by g++, as a backend of the tests.

A process that loads code with sanitizers has their library loaded first: ``run_sanitized``.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import polysci
from polysci.loop_ir.kernels import LaunchedFunction, Mark
from polysci.lower.registry import algorithm_of
from polysci.measure.integer_reference import Arrays
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.printers.launches import read_launches
from polysci.runtime import backends
from polysci.runtime.backends.cuda import Cuda, target_of
from polysci.runtime.backends.queued import Launches, QueuedLibrary
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.primitive import load_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import Schedule
from polysci.target.target import Target
from tests.support.device_cases import integers

NAME = "emulated"
HEADER = Path(__file__).with_name("emulation.h")
COMPILER = shutil.which("g++")
ORDERS = ("forwards", "backwards", "shuffled")
FLAGS = ("-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-fPIC", "-shared", "-w")
# What sanitizers find, their library, and how they are told to end at the first fault.
SANITIZERS = {
    "address,undefined": ("libasan.so", {"ASAN_OPTIONS": "detect_leaks=0"}),
    "thread": ("libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1"}),
}
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.malloc.argtypes, LIBC.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]


class Memory:
    """Bytes of the device, which hold NaN at first; a sanitizer guards both ends."""

    def __init__(self, size: int) -> None:
        self.address: int = LIBC.malloc(max(size, 1))
        ctypes.memset(self.address, 0xFF, size)

    def __del__(self) -> None:
        LIBC.free(self.address)


@dataclass(frozen=True)
class Part:
    """Bytes of other memory, which it keeps."""

    address: int
    whole: Memory


class EmulatedStream:
    """Launches run at once, in one of ORDERS."""

    def __init__(self) -> None:
        self.seconds, self.order = 0.0, ORDERS[0]

    addressed = True

    def on(self, stream: int) -> "EmulatedStream":
        return self

    def buffer(self, size: int) -> Memory:
        return Memory(size)

    def part(self, buffer: Memory, start: int, size: int) -> Part:
        return Part(buffer.address + start, buffer)

    def copy_in(self, array: np.ndarray) -> Memory:
        memory = Memory(array.nbytes)
        self.write(memory, array)
        return memory

    def write(self, buffer: Memory, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array)
        ctypes.memmove(buffer.address, data.ctypes.data, data.nbytes)

    def copy_out(self, buffer: Memory, array: np.ndarray) -> None:
        data = np.empty(array.shape, array.dtype)
        ctypes.memmove(data.ctypes.data, buffer.address, data.nbytes)
        array[...] = data

    def run(self, kernels: Mapping[str, Any], launches: Launches) -> list[float]:
        marks = list[float]()
        for step, values in launches:
            if isinstance(step, Mark):
                marks.append(0.0)
                continue
            numbers = [
                it.address if isinstance(it, Memory | Part) else int(it or 0) for it in values
            ]
            arguments = (ctypes.c_int64 * len(numbers))(*numbers)
            order = ORDERS.index(self.order)
            kernels[step.kernel](
                ctypes.c_int64(step.items), ctypes.c_int64(step.group), order, arguments
            )
        return marks

    def replay(
        self, kernels: Mapping[str, Any], function: LaunchedFunction, arguments: Sequence[Any],
        recording: None,
    ) -> None:  # fmt: skip
        self.run(kernels, function.launches(arguments))


def compile_kernels(text: str, kernels: Sequence[str], *, sanitizer: str = "") -> Path:
    """Return the library of CUDA C++, built at most once."""
    calls = "".join(f"EMU_KERNEL({name})\n" for name in kernels)
    source = f'#include "{HEADER}"\n{_variants(text)}{text}\n{calls}'
    flags = [*FLAGS]
    if sanitizer:
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    key = hashlib.sha256("\0".join([*flags, HEADER.read_text(), source]).encode()).hexdigest()
    path = cache_dir() / f"emulated-{key}.so"
    if not path.exists():
        file = path.with_suffix(".cpp")
        file.write_text(source)
        subprocess.run([COMPILER or "g++", *flags, file, "-o", path], check=True)
    return path


def _variants(text: str) -> str:
    """What the emulation stands for, by the names that it has in code of several types."""
    return "".join(
        f"#define {name}{end}{_renamed(meaning, end, text)}\n"
        for name, meaning in re.findall(r"^#define (ps_\w+)(.*)$", HEADER.read_text(), re.MULTILINE)
        for end in dict.fromkeys(re.findall(rf"\b{name}(_of_\w+)\(", text))
    )


def _renamed(meaning: str, end: str, text: str) -> str:
    """The meaning of a macro by the names of macros in code of several types."""
    return re.sub(
        r"\bPS_\w+", lambda it: f"{it[0]}{end}" if f"{it[0]}{end}" in text else it[0], meaning
    )


@dataclass(frozen=True)
class EmulatedCuda(Cuda):
    """A backend whose device is this CPU."""

    place: str = "sm_80"
    sanitizer: str = ""
    fault: tuple[str, str] = ("", "")  # what stands for what in the code
    emulated: EmulatedStream = field(default_factory=EmulatedStream)

    @property
    def name(self) -> str:
        return NAME

    @property
    def refusal(self) -> str:
        return ""

    @property
    def queue(self) -> Any:
        return self.emulated

    @property
    def occupancy(self) -> None:
        return None

    def targets(self) -> tuple[Target, ...]:
        return (replace(target_of(self.place), backend=NAME),)

    def build(self, text: str | Sequence[str], **options: Any) -> Path:
        source = text if isinstance(text, str) else "\n".join(text)
        old, new = self.fault
        assert old in source
        source = source.replace(old, new, 1) if old else source
        functions = read_launches(source).values()
        kernels = [step.kernel for function in functions for step in function.kernel_launches()]
        path = compile_kernels(source, kernels, sanitizer=self.sanitizer).with_suffix(".cu")
        path.write_text(source)
        return path

    def load(self, path: Path, declarations: str) -> QueuedLibrary:
        functions = read_launches(path.read_text())
        library = ctypes.CDLL(str(path.with_suffix(".so")))
        kernels = {
            step.kernel: library[f"emu_{step.kernel}"]
            for function in functions.values() for step in function.kernel_launches()
        }  # fmt: skip
        return QueuedLibrary(path, self.emulated, functions, kernels)

    def is_argument(self, argument: object) -> bool:
        return isinstance(argument, Memory | Part)


@contextmanager
def emulated(*, sanitizer: str = "", fault: tuple[str, str] = ("", "")) -> Iterator[EmulatedCuda]:
    """The backend, in the table of backends."""
    backend, table = EmulatedCuda(sanitizer=sanitizer, fault=fault), backends.BACKENDS
    backends.BACKENDS = {**table, NAME: backend}
    try:
        yield backend
    finally:
        backends.BACKENDS = table


def check_layer(problem: Problem, backend: EmulatedCuda, threads: int = 3) -> None:
    """Compare exact results with the reference, in every order of threads."""
    (target,) = backend.targets()
    primitive = polysci.compile(problem, "estimate", threads, target=target)
    assert primitive.backend == NAME and "_cuda4_" in str(primitive.schedule)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    bias = integers((problem.y_shape[problem.bias_axis],), 3)
    words = {"bias": bias, "residual": integers(problem.y_shape, 4), "clamp": (-50.0, 60.0)}
    packed = primitive.pack_weights(w)
    for order in ORDERS:
        backend.emulated.order = order
        expected = problem.reference(x, w, **words)
        assert np.array_equal(primitive(x, packed, **words), expected), order
        assert np.array_equal(primitive(x, packed), problem.reference(x, w)), order


def check_schedule(problem: Problem, schedule: Schedule, backend: EmulatedCuda) -> None:
    """Compare exact results of a schedule with the reference, in every order of threads."""
    primitive = load_primitive(problem, emit(problem, schedule, 3), 3, backend=backend.name)
    arrays = Arrays.of(problem, 0, algorithm_of(schedule).exact_inputs(problem))
    w = arrays.inputs["w"]
    plain = model_of(problem)[1].packs_b
    weights = w if plain else primitive.pack_weights(w, arrays.x_zero or 0)
    words = {name: arrays.inputs[name] for name in ("bias", "residual", "clamp")}
    for order in ORDERS:
        backend.emulated.order = order
        for variant, own in (("plain", {}), ("fused", words)):
            result = primitive(arrays.inputs["x"], weights, scales=arrays.scales, **own)
            fault = arrays.fault(variant, result)
            assert fault is None, f"{order}: {variant}: {fault}"


def run_sanitized(sanitizer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tests.support.cuda_emulation`` where one of SANITIZERS may be loaded.

    That of threads needs memory where it expects it: addresses are not drawn at random.
    """
    library, options = SANITIZERS[sanitizer]
    found = subprocess.run(
        [COMPILER or "g++", f"-print-file-name={library}"], capture_output=True, text=True
    )
    environment = {
        **os.environ, "LD_PRELOAD": found.stdout.strip(), "PYTHONMALLOC": "malloc", **options,
        "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        ["setarch", "-R", sys.executable, "-m", "tests.support.cuda_emulation", sanitizer, *words],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
