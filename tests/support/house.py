"""Counts of the package's structure, as a table: ``python -m tests.support.house [DRIVER ...]``.

A room is a folder of polysci/. While a driver runs, all calls between functions of the package are
recorded. A pair of rooms of which one calls the other is a passage; it is a return where the called
room was left before and still waits for the end of its own call.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import threading
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "polysci"
GUARD = PACKAGE / "border" / "guard.py"
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SMALL = 40  # lines
# Text of C in a string: a directive at the start of a line, a loop, a declaration, a qualifier.
C_TEXT = re.compile(
    r"^\s*#(?:include|pragma|define)\b|\bfor \((?:int|long|int64_t|size_t)\b|\brestrict\b"
    r"|__attribute__\(\(|\breturn \S+;|\bstatic (?:inline|const|void|int)\b"
    r"|\b(?:int|int64_t|float|double|void|size_t) \*?\w+ ?[=;(\[]",
    re.MULTILINE,
)
C_TREE = "polysci.printers.ctree"  # who imports it puts texts of C together
PRINTERS = ("printers", "export")
C_FOLDERS = (*PRINTERS, "microkernels")  # where files of C stand: templates, headers of kernels
C_FILES = (".c", ".h", ".inc")
# Rooms and modules that hold words of C and print none: why.
READERS = {
    "polysci.polyhedral.extract": "reads C: the words that it knows, and its messages",
    "polysci.peers.onednn": "declares oneDNN's own C interface to cffi",
}


def modules() -> dict[str, Path]:
    """Return all files of the package by their dotted names."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def importers() -> dict[str, set[str]]:
    """Return the files that import each module, at any place of theirs."""
    names, users = modules(), defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        importer = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in imported_names(ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
            if name in names and name != importer:
                users[name].add(importer)
    return {name: users[name] for name in names}


def with_one_importer() -> list[str]:
    """Return the modules, packages aside, that one file of the package imports."""
    rows = importers().items()
    return [name for name, users in rows if len(users) == 1 and not name.endswith("__init__")]


def defining_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a file's module, classes and functions; expressions hold none."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, DEFINITIONS):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            waiting += inner if isinstance(inner, list) else ()


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the dotted names of modules, or of what stands in them, that a file's nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]  # imported on first use


def printing_modules() -> list[str]:
    """Return the modules outside of printers and of readers that print text of C."""
    return [
        name
        for name, path in modules().items()
        if path.relative_to(PACKAGE).parts[0] not in PRINTERS
        and not name.startswith(tuple(READERS))
        and prints_c(path)
    ]


def misplaced_c(package: Path = PACKAGE) -> list[str]:
    """Return the files of C, templates among them, outside of the folders for them."""
    paths = (path.relative_to(package) for path in sorted(package.rglob("*")))
    return [
        str(path) for path in paths if path.suffix in C_FILES and path.parts[0] not in C_FOLDERS
    ]


def prints_c(path: Path) -> bool:
    """Tell whether a file builds C trees, or a string of it, but for docstrings, holds C."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    if C_TREE in imported_names(nodes):
        return True
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and C_TEXT.search(node.value)
        for node in nodes
    )


def layers(contract: str) -> int:
    """Return the number of layers in the import contract of this name; 0 without one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    return next((len(c["layers"]) for c in contracts if c["name"] == contract), 0)


@cache
def room_of(code: CodeType) -> str:
    """Return the room of a function; empty for other packages and for wrappers of all doors."""
    path = Path(code.co_filename)
    if code.co_name == "<module>" or not path.is_relative_to(PACKAGE) or path == GUARD:
        return ""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "polysci"


class Trace:
    """The rooms that a run enters, the passages between rooms, and those that are returns."""

    def __init__(self) -> None:
        self.passages: set[tuple[str, str]] = set()
        self.returns: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record a call, as ``sys.setprofile`` asks for."""
        if event != "call" or not (room := room_of(frame.f_code)):
            return
        above = callers(frame)
        before = next(above, "a user")
        if before == room or (before, room) in self.returns:
            return
        self.passages.add((before, room))
        if room in above:
            self.returns.add((before, room))

    def __str__(self) -> str:
        rooms = {room for _, room in self.passages}
        return f"{len(rooms):5} {len(self.returns):8} {len(self.passages):9}"


def callers(frame: FrameType) -> Iterator[str]:
    """Yield the rooms of the functions that wait for the end of a call, the nearest first."""
    caller = frame.f_back
    while caller is not None:
        if room := room_of(caller.f_code):
            yield room
        caller = caller.f_back


def trace(run: Callable[[], object]) -> Trace:
    """Return the calls between rooms while ``run`` does its work, in all threads."""
    record = Trace()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return record


def run_optimize() -> Callable[[], object]:
    """Return a search that measures schedules of one layer."""
    import polysci

    layer = polysci.parse_problem("mb1ic16ih14oc16kh3ph1")
    return lambda: polysci.optimize(layer, "measure")


def run_compile_network() -> Callable[[], object]:
    """Return the compilation of an ONNX model of a convolution, a softmax and a product."""
    import polysci
    from tests.support.onnxmodels import model, node, reals

    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f m", "s"),
        node("Softmax", "s", "y"),
    ]
    weights = {"w": reals(8, 3, 3, 3), "m": reals(8, 5)}
    source = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, weights)
    return lambda: polysci.compile_network(source, level="measure")


def run_notation() -> Callable[[], object]:
    """Return the compilation of a comprehension."""
    from polysci import notation

    text = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
    return lambda: notation.compile(text, {"M": 8, "K": 16, "N": 8})


def run_torch() -> Callable[[], object]:
    """Return the optimisation of a small PyTorch module."""
    import torch

    from polysci.torch import optimize

    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    return lambda: optimize(module, torch.randn(1, 3, 6, 6))


def run_training_step() -> Callable[[], object]:
    """Return one step of a small network."""
    from polysci import layers, training

    network = [layers.Linear(6, 8), layers.Tanh(), layers.Linear(8, 3)]
    x, classes = np.ones((5, 6), np.float32), np.array([0, 2, 1, 1, 0])
    return lambda: training.compile_training(network, (5, 6), level="estimate").step(x, classes)


DRIVERS: dict[str, Callable[[], Callable[[], object]]] = {
    "optimize": run_optimize,
    "compile_network": run_compile_network,
    "notation.compile": run_notation,
    "torch.optimize": run_torch,
    "a training step": run_training_step,
}


def static_rows() -> Iterator[tuple[str, object]]:
    """Yield the counts that follow from the files."""
    files = modules()
    sizes = {name: len(path.read_text("utf-8").splitlines()) for name, path in files.items()}
    yield "modules that print C text outside printers/ and export/", len(printing_modules())
    yield "files of C outside printers/, export/ and microkernels/", len(misplaced_c())
    yield "import layers", layers("one-way flow")
    yield "import layers inside cost", layers("one-way flow inside cost")
    yield f"modules under {SMALL} lines", sum(lines < SMALL for lines in sizes.values())
    yield "modules with exactly one importer", len(with_one_importer())
    yield "modules", len(files)
    yield (
        "lines of the package",
        sum(len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")),
    )


def main(names: list[str]) -> None:
    """Print the table; names of drivers restrict it to these."""
    for text, count in () if names else static_rows():
        print(f"{text:58} {count}")
    print(f"{'rooms, following the calls from':58} entered  returns  passages")
    with tempfile.TemporaryDirectory(prefix="polysci-house-") as folder:
        os.environ["POLYSCI_CACHE_DIR"] = folder
        for name in names or DRIVERS:
            print(f"  {name:56} {trace(DRIVERS[name]())}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
