"""Random graphs with everything that their code depends on: one row an axis."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.export.freestanding import write_freestanding
from polysci.export.network_project import write_project
from polysci.frontends.onnx import reference
from polysci.network.compiled import Network, compile_network
from polysci.target.host import detect
from tests.support.campaign.axes import Case, axis, one_of
from tests.support.campaign.layers import FLAGS
from tests.support.flags import optimise
from tests.support.graphbound import bounds
from tests.support.networks import fault, given, read
from tests.support.randomgraphs import random_model
from tests.support.rates import fuse_rows_everywhere, set_coefficients


@dataclass(frozen=True, slots=True)
class NetworkCase(Case):
    """A graph of ``nodes`` and how it is compiled, run or exported.

    ``quantised``: a part of its nodes work on 8-bit numbers; ``chain``: they work on images, one
    behind the other. ``rows``, ``share``: row fusion, and stages that threads share, where costs
    say so, or wherever they can be. ``form``: what is compared, a call, or also a run on bound
    arrays, or the self-test of what is exported.
    """

    KIND: ClassVar[str] = "network"

    graph: int = axis(lambda random, _: random.randrange(1 << 30))
    nodes: int = one_of(3, 5, 8, 8, 12)
    quantised: int = one_of(0, 0, 1)
    chain: int = one_of(0, 0, 1)
    dtype: str = one_of("f32", "f32", "bf16")
    isa: str = axis(lambda random, _: random.choice([isa.name for isa in detect().allowed]))
    form: str = one_of(*("call",) * 5, "bound", "bound", "project", "packed", "freestanding")
    threads: int = axis(
        lambda random, drawn: random.choice((1, 1, 2, 3)) if drawn["form"] != "freestanding" else 1
    )
    share: str = one_of("costs", "always")
    algorithm: str = one_of("direct", "direct", "auto")
    fuse: int = one_of(1, 1, 0)
    rows: str = one_of("costs", "always")
    optimize: str = one_of("speed", "speed", "memory")
    reproducible: int = one_of(0, 0, 1)
    flags: str = one_of(*FLAGS)
    seed: int = axis(lambda random, _: random.randrange(1 << 30))

    @contextmanager
    def costs(self) -> Iterator[None]:
        """Row fusions and shared stages everywhere, if the case says so."""
        coefficients = dict[str, float]()
        with pytest.MonkeyPatch.context() as patch:
            if self.share == "always":
                coefficients |= {"barrier_us": 0.0, "team_us": 0.0}
            set_coefficients(patch, **coefficients)
            if self.rows == "always":
                fuse_rows_everywhere(patch)
            yield

    def wrong(self) -> str:
        """What is wrong with the network, and its nodes; empty if nothing is."""
        model = random_model(
            self.graph, self.nodes, quantised=bool(self.quantised), chain=bool(self.chain)
        )
        optimise(self.flags)
        with self.costs():
            network = compile_network(
                model, "estimate", self.threads, dtype=self.dtype, isa=self.isa,
                algorithm=self.algorithm, fuse=bool(self.fuse), optimize=self.optimize,
                reproducible=bool(self.reproducible), name="net",
            )  # fmt: skip
            graph = read(model)
            inputs = given(graph, self.seed)
            try:
                exact = reference.run(graph, inputs)
            except UnsupportedError:  # ONNX's own has faults, as at pools of some padded rows
                return ""
            limits = bounds(graph, exact, self.dtype)
            told = fault(graph, network, inputs, exact, limits)
            if not told and self.form == "bound":
                told = self._bound(network, inputs)
            elif not told and self.form != "call":
                told = self._exported(network)
        return "\n".join([told, *graph.lines()]) if told else ""

    def _bound(self, network: Network, inputs: dict[str, np.ndarray]) -> str:
        """A run on given arrays gives what a call does, the second time too."""
        expected = network(inputs)
        out = {name: np.full_like(value, 77) for name, value in expected.items()}
        run = network.bind(inputs, out)
        for _ in range(2):
            run()
            for name, value in expected.items():
                if not np.array_equal(out[name], value, equal_nan=True):
                    return f"{name}: a bound run gives something else than a call"
        return ""

    def _exported(self, network: Network) -> str:
        """What make says of a project that fails its self-test."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "net"
            if self.form == "freestanding":
                write_freestanding(network, out)
            else:
                write_project(network, out, packed=self.form == "packed")
            words = ["make", "check", f"CFLAGS={self.flags} -Werror"]
            done = subprocess.run(words, cwd=out, capture_output=True, text=True, check=False)
        return f"{done.stdout}{done.stderr}"[-3000:] if done.returncode else ""
