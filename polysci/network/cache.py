"""Compiled networks in the cache, and choices of tuners in wisdom, for later processes.

The key of a network in the cache stands for all that decides about it at a level that measures
nothing: the graph with its constants, options and rates, the compiler, and the code of this
package. The rest are records: an entry holds a digest of those that its network was planned with.

Records of tuners are kept by what a network computes. Names do not matter: tensors are numbered in
the order in which stages use them. Networks that differ in numbers alone are one in other sizes.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from polysci.border.files import read_stored
from polysci.errors import PolysciError, WisdomError
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import lower
from polysci.lower.choice import key_of as key_of_record
from polysci.measure.first_run import has_run
from polysci.network.build import signature_of
from polysci.network.code import Code
from polysci.network.kept_weights import MOST_BYTES, describe_weights, read_weights
from polysci.network.options import PlanOptions
from polysci.network.prepare import PreparedNetwork
from polysci.network.runner import Runner, restore_runner
from polysci.numerics.arrays import Array
from polysci.program.stages import problems
from polysci.runtime.backends import backend_of
from polysci.runtime.build import cache as builds
from polysci.runtime.build.compiler import find_compiler
from polysci.runtime.build.eviction import note_insertion, scratch_in
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.measurement import host_of
from polysci.runtime.policy import read_policy
from polysci.target.extensions import resource
from polysci.target.isas import kernel_sources
from polysci.tune.records import LAYER, NETWORK, parse_choices, write_choices
from polysci.tune.wisdom import LEVELS, Record, Wisdom

DIGITS: Final = 16  # of a digest
_NAME, _WORD, _NUMBER = re.compile(r"name='[^']*'"), re.compile(r"'([^']*)'"), re.compile(r"\d+")


@dataclass(frozen=True)
class NetworkRecords:
    """The records of one network for these options."""

    graph: Graph
    options: PlanOptions
    wisdom: Wisdom

    @cached_property
    def numbers(self) -> dict[str, str]:
        """``v0``, ``v1`` ... for the tensors that the model names, in the order of their use."""
        return self._canonical[1]

    @cached_property
    def _canonical(self) -> tuple[str, dict[str, str]]:
        """The text of what is computed, with those names instead of the model's."""
        program, names = lower(self.graph), dict[str, str]()

        def number(match: re.Match[str]) -> str:
            name = match[1]
            if name in program.values:
                names.setdefault(name, f"v{len(names)}")
            return names.get(name, match[0])

        stages = repr((program.inputs, program.stages, program.outputs))
        text = _WORD.sub(number, _NAME.sub("", stages))
        values = [(program.values[name].shape, program.values[name].dtype) for name in names]
        return f"{text} {values}", names

    @property
    def _key_prefix(self) -> str:
        """The beginning of the key that other sizes have too."""
        options = self.options
        digest = _digest_text(_NUMBER.sub("#", self._canonical[0]))
        order = ("reproducible ",) if options.reproducible else ()
        return " ".join((NETWORK, digest, options.dtype, options.algorithm, *order)) + " "

    @property
    def key(self) -> str:
        """The key under which records are kept."""
        return self._key_prefix + _digest_text(" ".join(_NUMBER.findall(self._canonical[0])))

    def best(self) -> dict[str, str] | None:
        """Return the choices of the fastest on this machine, at the level asked for or above."""
        options = self.options
        level = "estimate" if options.level == "wisdom-only" else options.level
        with suppress(WisdomError):
            if not self.wisdom.starting_with(NETWORK):  # the graph need not be read
                return None
            record = self.wisdom.best(
                self.key, options.threads, options.target.isa.features,
                host=host_of(options.target), level=level,
            )  # fmt: skip
            return parse_choices(record.schedule) if record else None
        return None

    def seeds(self, layers: Sequence[str], count: int) -> list[dict[str, str]]:
        """Return choices that did well: of this network, here first, then of other sizes."""
        records: Sequence[Record] = ()
        with suppress(WisdomError):
            records = self.wisdom.starting_with(self._key_prefix)
        host, key, threads = host_of(self.options.target), self.key, self.options.threads
        ranked = sorted(
            records,
            key=lambda r: (r.problem != key, r.host != host, r.threads != threads, r.seconds),
        )
        choices = list[dict[str, str]]()
        for record in ranked[:count]:
            with suppress(PolysciError):
                choices.append(_for_layers(parse_choices(record.schedule), layers))
        return choices

    def keep(self, texts: Mapping[str, str], seconds: float, *, whole: bool) -> None:
        """Record an individual; one of a tuner that was ended counts as the level asked for."""
        options = self.options
        least = options.level if options.level in LEVELS else "estimate"
        level = max(least, "patient", key=LEVELS.index) if whole else least
        try:
            self.wisdom.record(
                self.key, options.threads, options.target.isa.features, level, write_choices(texts),
                seconds, host=host_of(options.target), isa=options.target.isa.name,
            )  # fmt: skip
        except (WisdomError, ValueError) as error:  # thousands of characters, of hundreds of layers
            _log.warning("what the tuner chose is not recorded: %s", error)


def _for_layers(texts: Mapping[str, str], layers: Sequence[str]) -> dict[str, str]:
    """Return choices with the keys of layers of other sizes, which are in the same order."""
    own = [name for name in texts if name.startswith(f"{LAYER} ")]
    names = dict(zip(own, [f"{LAYER} {key}" for key in layers], strict=False))
    return {names.get(name, name): text for name, text in texts.items()}


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


FOLDER: Final = "networks"
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
        """Look up the network itself, and its layers in any order of sums and in one."""
        store = wisdom or Wisdom()
        layers = problems(prepared.program).values()
        keys = (
            NetworkRecords(prepared.graph, options, store).key,
            *(key_of_record(layer, options.algorithm) for layer in layers),
            *(key_of_record(layer, options.algorithm, reproducible=True) for layer in layers),
        )
        return ReadRecords(keys, _digest_of_records(keys, options, store))

    def are_current(self, options: PlanOptions, wisdom: Wisdom | None) -> bool:
        """Tell whether planning would read the same today."""
        return self.digest == _digest_of_records(self.problems, options, wisdom or Wisdom())


def _digest_of_records(keys: Sequence[str], options: PlanOptions, wisdom: Wisdom) -> str:
    """Digest the schedules that searches may take, the preferred ones first, and nothing else."""
    host, features = host_of(options.target), options.target.isa.features
    records: Sequence[Record] = ()
    with suppress(WisdomError):  # of which planning warns
        records = wisdom.winners(keys, {1, options.threads}, features, host=host)
    rows = [(r.problem, r.threads, r.schedule, r.disturbed) for r in records]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def digest_graph(graph: Graph) -> str:
    """Return a digest of a graph with its constants, whatever the order of its tables."""
    tables = (sorted(table.items()) for table in (graph.constants, graph.tensors))
    return digest_value((replace(graph, constants={}, tensors={}), *tables))


def key_of_network(digest: str, options: PlanOptions, *others: str) -> str:
    """Return the name of the entry of a network by its graph; ``others`` are further options."""
    rates = options.rates.to_json()
    parts = (_code(), find_compiler().identity, repr(options), rates, digest, *others)
    return hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()


@cache
def _code() -> str:
    """Return a digest of the package and of the microkernels."""
    folders = (_PACKAGE, resource("microkernels"), *kernel_sources().folders)
    files = [path for folder in folders for path in sorted(folder.rglob("*.*"))
             if path.suffix in (".py", ".c", ".h", ".def")]  # fmt: skip
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def load_network(
    key: str,
    constants: Mapping[str, Array],
    options: PlanOptions,
    wisdom: Wisdom | None,
    *,
    verify: bool = False,
) -> tuple[Runner, dict[str, Any]] | None:
    """Return the network of an entry, with the constants of its graph; None where it is not there.

    With ``verify`` only of a library that has run on this machine. None too where the policy is to
    keep no networks.
    """
    policy = read_policy()
    if not policy.kept_networks:
        return None
    home = cache_dir() / FOLDER / key
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, PolysciError):
        entry = json.loads(read_stored(home / _ENTRY))
        read = ReadRecords(tuple(entry["records"]["problems"]), entry["records"]["digest"])
        if not read.are_current(options, wisdom):
            return None
        library = builds.find(entry["build"])
        checked = backend_of(options.target).measured and policy.first_runs
        if verify and checked and library and not has_run(library):
            return None
        extra = read_stored(home / _WEIGHTS, MOST_BYTES)
        if library is None or hashlib.sha256(extra).hexdigest() != entry["weights"]:
            return None
        arrays = read_weights(entry["parts"], extra, constants)
        runner = restore_runner(library, entry["network"], arrays)
        os.utime(home)
        return runner, entry["summary"]
    return None


def keep_network(
    key: str, code: Code, library: Path, constants: Mapping[str, Array],
    summary: Mapping[str, Any], read: ReadRecords,
) -> None:  # fmt: skip
    """Store a network for later processes, if the policy is to; a full disk is no error."""
    if not read_policy().kept_networks:
        return
    described = describe_weights(code.weights_file, constants)
    if described is None:
        _log.debug("the network %s is not kept: its weights are made too unlike", code.name)
        return
    parts, others = described
    entry = {
        "build": library.parent.name,
        "network": signature_of(code),
        "parts": parts,
        "records": asdict(read),
        "summary": dict(summary),
        "weights": hashlib.sha256(others).hexdigest(),
    }
    home = cache_dir() / FOLDER / key
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with scratch_in(home.parent) as aside:
            (aside / _WEIGHTS).write_bytes(others)
            (aside / _ENTRY).write_text(json.dumps(entry), encoding="utf-8")
            shutil.rmtree(home, ignore_errors=True)
            aside.rename(home)
        note_insertion(home.parent.parent)
    except OSError as error:
        _log.debug("the network %s is not kept: %s", code.name, error)


def freeze(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """Return an immutable mapping, whose own class has no name that a pickle could hold."""
    return MappingProxyType(items)


class _Pickler(pickle.Pickler):
    """Takes immutable mappings too."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MappingProxyType):
            return freeze, (dict(value),)
        return NotImplemented


class _Digest:
    """A file that keeps a digest of what is written to it."""

    def __init__(self) -> None:
        self.state = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.state.update(data)
        return memoryview(data).nbytes


def dumps(value: object) -> bytes:
    """Return the pickle of a value; ``pickle.loads`` reads it."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def digest_value(value: object) -> str:
    """Return a digest of the pickle of a value without cycles, whose sets have one order."""
    file = _Digest()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # what is equal is written alike, whether it is one object or several
    pickler.dump(value)
    return file.state.hexdigest()
