"""Compiled networks for later processes: the library, and of which constants it takes weights.

A key stands for all that decides about a network at a level that measures nothing: the graph with
its constants, options and rates, the compiler, and the code of this package. The rest are records:
an entry holds a digest of those that its network was planned with.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.border.files import read_stored
from polysci.errors import PolysciError, WisdomError
from polysci.graph.graph import Graph
from polysci.lower.choice import key_of as key_of_record
from polysci.lower.weights_file import pieces_of
from polysci.measure import first_run
from polysci.measure.first_run import has_run
from polysci.network.build import signature_of
from polysci.network.code import Code
from polysci.network.network_records import NetworkRecords
from polysci.network.options import PlanOptions
from polysci.network.pickling import digest_of
from polysci.network.planned import NetworkSummary
from polysci.network.prepare import PreparedNetwork
from polysci.network.runner import Runner
from polysci.network.stored import restore_runner
from polysci.numerics.arrays import Array, round_up
from polysci.program.stages import problems
from polysci.runtime.backends import backend_of
from polysci.runtime.build import cache as builds
from polysci.runtime.build.compiler import find_compiler
from polysci.runtime.build.eviction import note_insertion, scratch_in
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.measurement import host_of
from polysci.target.isas import kernel_sources
from polysci.target.resources import resource
from polysci.tune.wisdom import Record, Wisdom

FOLDER: Final = "networks"
MOST_BYTES: Final = 1 << 25  # of weights that are no constants of the graph
_ENTRY, _WEIGHTS = "entry.json", "weights"
_PACKAGE: Final = Path(__file__).parents[1]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Keys of the records that planning a network reads, and a digest of those there are."""

    problems: tuple[str, ...]
    digest: str

    @staticmethod
    def of(prepared: PreparedNetwork, options: PlanOptions, wisdom: Wisdom | None) -> ReadRecords:
        """Of the network itself, and of its layers in any order of sums and in one."""
        store = wisdom or Wisdom()
        layers = problems(prepared.program).values()
        keys = (
            NetworkRecords(prepared.graph, options, store).key,
            *(key_of_record(layer, options.algorithm) for layer in layers),
            *(key_of_record(layer, options.algorithm, reproducible=True) for layer in layers),
        )
        return ReadRecords(keys, _digest_of_records(keys, options, store))

    def are_current(self, options: PlanOptions, wisdom: Wisdom | None) -> bool:
        """Whether planning would read the same today."""
        return self.digest == _digest_of_records(self.problems, options, wisdom or Wisdom())


def _digest_of_records(keys: Sequence[str], options: PlanOptions, wisdom: Wisdom) -> str:
    """Of the schedules that searches may take, the preferred ones first, and of nothing else."""
    host, features = host_of(options.target), options.target.isa.features
    records: Sequence[Record] = ()
    with suppress(WisdomError):  # of which planning warns
        records = wisdom.winners(keys, {1, options.threads}, features, host=host)
    rows = [(r.problem, r.threads, r.schedule, r.disturbed) for r in records]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def key_of(graph: Graph, options: PlanOptions, *words: str) -> str:
    """The name of a network's entry; ``words`` are further options."""
    tables = (sorted(table.items()) for table in (graph.constants, graph.tensors))
    digest = digest_of((replace(graph, constants={}, tensors={}), *tables))
    rates = options.rates.to_json()
    parts = (_code(), find_compiler().identity, repr(options), rates, digest, *words)
    return hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()


@cache
def _code() -> str:
    """A digest of the package and of the microkernels."""
    folders = (_PACKAGE, resource("microkernels"), *kernel_sources().folders)
    files = [path for folder in folders for path in sorted(folder.rglob("*.*"))
             if path.suffix in (".py", ".c", ".h", ".def")]  # fmt: skip
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def load(
    key: str,
    constants: Mapping[str, Array],
    options: PlanOptions,
    wisdom: Wisdom | None,
    *,
    verify: bool = False,
) -> tuple[Runner, NetworkSummary] | None:
    """The network of an entry, with the constants of its graph; None where it is not there.

    With ``verify`` only of a library that has run on this machine.
    """
    home = cache_dir() / FOLDER / key
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, PolysciError):
        entry = json.loads(read_stored(home / _ENTRY))
        read = ReadRecords(tuple(entry["records"]["problems"]), entry["records"]["digest"])
        if not read.are_current(options, wisdom):
            return None
        library = builds.find(entry["build"])
        checked = first_run.FIRST_RUNS and backend_of(options.target).service
        if verify and checked and library and not has_run(library):
            return None
        extra = read_stored(home / _WEIGHTS, MOST_BYTES)
        if library is None or hashlib.sha256(extra).hexdigest() != entry["weights"]:
            return None
        arrays, at = list[Array](), 0
        for part in entry["parts"]:
            if isinstance(part, str):
                arrays.append(np.ascontiguousarray(constants[part]))
            else:
                arrays.append(np.frombuffer(extra, np.uint8, part, at))
                at += round_up(part)
        runner = restore_runner(library, entry["network"], arrays)
        os.utime(home)
        return runner, NetworkSummary(**entry["summary"])
    return None


def keep(
    key: str, code: Code, library: Path, constants: Mapping[str, Array], summary: NetworkSummary,
    read: ReadRecords,
) -> None:  # fmt: skip
    """For later processes; a full disk is none of the network's business."""
    parts, extra = _parts_of(code, constants)
    if len(extra) > MOST_BYTES:
        return
    entry = {
        "build": library.parent.name,
        "network": signature_of(code),
        "parts": parts,
        "records": asdict(read),
        "summary": asdict(summary),
        "weights": hashlib.sha256(extra).hexdigest(),
    }
    home = cache_dir() / FOLDER / key
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with scratch_in(home.parent) as aside:
            (aside / _WEIGHTS).write_bytes(extra)
            (aside / _ENTRY).write_text(json.dumps(entry), encoding="utf-8")
            shutil.rmtree(home, ignore_errors=True)
            aside.rename(home)
        note_insertion(home.parent.parent)
    except OSError as error:
        _log.debug("the network %s is not kept: %s", code.name, error)


def _parts_of(code: Code, constants: Mapping[str, Array]) -> tuple[Sequence[Any], bytes]:
    """Each of the weights as the name of the constant that it is, or its size among others."""
    names = {_digest(array): name for name, array in constants.items()}
    parts, extra = list[str | int](), bytearray()
    for _, array in code.weights_file.parts:
        if name := names.get(_digest(array)):
            parts.append(name)
        elif len(extra) <= MOST_BYTES:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            parts.append(data.nbytes)
            extra += b"".join(pieces_of(data))
    return parts, bytes(extra)


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
