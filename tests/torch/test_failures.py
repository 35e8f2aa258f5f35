"""What fails to compile, at any depth, is left to PyTorch: said once, and in the report."""

import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from polysci.errors import BuildError, SpecError, UnsupportedError, WisdomError  # noqa: E402
from polysci.frontends.pytorch import program  # noqa: E402
from polysci.network import compiled, prepare  # noqa: E402
from polysci.network.compiled import compile_network  # noqa: E402
from polysci.torch import compiled_part, fallback, optimize, parts, variants  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of

# By depth: where an error is raised, and what error.
DEPTHS: dict[str, tuple[Any, str, Exception]] = {
    "import": (parts, "import_calls", KeyError("no rule")),
    "lowering": (prepare, "lower", RuntimeError("no stage")),
    "passes": (prepare, "run_passes", UnsupportedError("this pass")),
    "search": (prepare, "optimize", AssertionError("no schedule")),
    "code": (compiled, "generate_code", IndexError("no code")),
    "build": (compiled, "library_of", BuildError("cc1: out of memory")),
    "first run": (compiled_part.CompiledPart, "forward", ValueError("a wrong status")),
    "comparison": (parts, "largest_error", ZeroDivisionError("by zero")),
    "joining": (variants, "join_parts", TypeError("these parts")),
}


@pytest.fixture(autouse=True)
def forget_warnings() -> Iterator[None]:
    fallback._told.clear()
    yield


class Between(nn.Module):
    """Two parts, and a call between them that polysci lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(7, 6), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        return self.last(torch.special.bessel_j0(self.first(x)))


def module_of(depth: str) -> Any:
    """Of a size of its own, so that no network of it is in the cache."""
    width = 5 + [*DEPTHS].index(depth)
    torch.manual_seed(width)
    if depth == "joining":
        return Between()
    return nn.Sequential(nn.Linear(7, width), nn.ReLU(), nn.Linear(width, 3))


def inject(depth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, error = DEPTHS[depth]

    def fail(*_: Any, **_words: Any) -> Any:
        raise error

    monkeypatch.setattr(place, name, fail)


def told(caplog: pytest.LogCaptureFixture) -> str:
    """The only warning."""
    (record,) = [it for it in caplog.records if it.levelno == logging.WARNING
                 and it.name == fallback.__name__]  # fmt: skip
    return record.getMessage()


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("depth", DEPTHS)
def test_optimized_modules(
    depth: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = module_of(depth).eval(), torch.randn(2, 7)
    inject(depth, monkeypatch)
    optimized = optimize(module, x, level="estimate", threads=1)
    wanted = module(x)
    assert torch.equal(optimized(x), wanted) and torch.equal(optimized(x), wanted)
    reason = str(DEPTHS[depth][2].args[0])
    assert reason in told(caplog) and reason in str(optimized.report)
    assert "left to PyTorch" in str(optimized.report)
    expected = isinstance(DEPTHS[depth][2], UnsupportedError | BuildError)
    assert expected != ("fault of polysci: please report it" in str(optimized.report))


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_graphs_of_torch_compile(
    depth: str, backward: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = module_of(depth).train(backward), torch.randn(2, 7)
    other = copy.deepcopy(module)
    inject(depth, monkeypatch)
    step = torch.compile(module, backend=compile_graph, options={"rest": "eager", "threads": 1})
    with torch.set_grad_enabled(backward):
        torch.testing.assert_close(step(x), other(x))
        if backward:
            step(x).square().sum().backward()
            other(x).square().sum().backward()
            for a, b in zip(module.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad)
    texts = [it.getMessage() for it in caplog.records if it.name == fallback.__name__]
    reason = str(DEPTHS[depth][2].args[0])
    assert len(texts) == 1 and reason in texts[0]


def test_other_parts_are_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, x, count = Between().eval(), torch.randn(2, 7), [0]
    compile_part = variants._compile_graph

    def fail_once(*words: Any) -> Any:
        count[0] += 1
        if count[0] == 1:
            raise BuildError("cc1: killed")
        return compile_part(*words)

    monkeypatch.setattr(variants, "_compile_graph", fail_once)
    optimized = optimize(module, x, level="estimate", threads=1)
    torch.testing.assert_close(optimized(x), module(x))
    reasons = [part.reason for part in optimized.report.parts]
    assert reasons == ["it does not compile: BuildError: cc1: killed", ""]
    assert "a part of 1 calls is left to PyTorch" in told(caplog)
    assert "compiled: 1 calls; left to PyTorch: it does not" in str(optimized.report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["calls between parts", "a graph"])
def test_failures_of_inductor(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **_words: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch._inductor, "compile", fail)
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda _: fail)
    module, x = Between().eval(), torch.randn(2, 7)
    if place == "a graph":
        module.double()
        x = x.double().requires_grad_()
    wanted = module(x)
    made = torch.compile(module, backend=compile_graph, options={"threads": 1})
    with torch.set_grad_enabled(place == "a graph"):
        torch.testing.assert_close(made(x), wanted)
    assert "inductor cannot compile it: no C++ compiler" in told(caplog)
    assert fallback.RESTS[0] == "inductor"


def test_what_is_asked_for_is_no_failure() -> None:
    """Options that are none, and records that are wanted and not there."""
    module, x = nn.Linear(7, 3).eval(), torch.randn(2, 7)
    with pytest.raises(SpecError, match="algorithm 'winogard': expected"):
        optimize(module, x, algorithm="winogard")
    with pytest.raises(WisdomError, match="no record for"):
        optimize(module, x, "wisdom-only")


def test_a_module_that_fails_itself(caplog: pytest.LogCaptureFixture) -> None:
    """It is not polysci that does."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.line = nn.Embedding(4, 3), nn.Linear(3, 2)

        def forward(self, at: Any) -> Any:
            return self.line(self.table(at))

    at = torch.tensor([1, 9])
    optimized = optimize(Table().eval(), at, level="estimate", threads=1)
    assert "PyTorch fails when it" in str(optimized.report)
    assert "fault of polysci" not in str(optimized.report) + told(caplog)
    with pytest.raises(IndexError):
        optimized(at)


class Cache:
    """Of keys, in a tensor that is no part of the module that writes to it."""

    def __init__(self) -> None:
        self.keys = torch.zeros(4, 8)

    def update(self, key: Any, at: Any) -> Any:
        self.keys.index_copy_(0, at, key)
        return self.keys


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache, self.line = Cache(), nn.Linear(8, 8)
        self.register_buffer("keys", self.cache.keys, persistent=False)

    def forward(self, x: Any, at: Any) -> Any:
        return x @ self.cache.update(self.line(x), at).T


@pytest.fixture(scope="module")
def cached() -> Any:
    words = {"args": (torch.ones(1, 8), torch.tensor([0])), "strict": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Cached().eval(), **words)


def test_decompositions_that_pytorch_cannot_make(cached: Any, tmp_path: Path) -> None:
    torch.export.save(cached, tmp_path / "cached.pt2")
    with pytest.raises(AssertionError):
        cached.run_decompositions()  # which is what fails
    for model in (cached, str(tmp_path / "cached.pt2")):
        with pytest.raises(UnsupportedError, match=r"PyTorch fails when run_decompositions\(\)"):
            compile_network(model, "estimate")
    with pytest.raises(UnsupportedError, match="export the module with strict=True, with every"):
        compile_network(cached, "estimate")
    module = Cached().eval()
    exported = torch.export.export(
        module, (torch.ones(1, 8), torch.tensor([0])), strict=True
    )  # fmt: skip
    network = compile_network(exported, "estimate")  # which keeps the keys
    for at in (2, 0):
        x = torch.randn(1, 8)
        with torch.no_grad():
            eager = module(x, torch.tensor([at]))
        (own,) = network({"x": x.numpy(), "at": np.array([at])}).values()
        assert np.abs(own - eager.numpy()).max() < 1e-5


def test_other_failures_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it exports again, runs a call, or takes a value."""
    size = torch.export.Dim("n", min=2, max=8)
    free = torch.export.export(
        nn.Linear(3, 2).eval(), (torch.ones(4, 3),), dynamic_shapes=[{0: size}]
    )  # fmt: skip
    fixed = torch.export.export(nn.Linear(3, 2).eval(), (torch.ones(4, 3),))
    with pytest.raises(SpecError, match="value of 'input': expected numbers, got 'abc'"):
        compile_network(fixed, "estimate", values={"input": "abc"})
    called = program.read_program(fixed)
    wrong = {node.name: torch.ones(4, 4).numpy() for node in called.inputs}
    with pytest.raises(UnsupportedError, match=r"PyTorch fails when it computes aten\.linear"):
        program.run_program(called, wrong)

    def fail(*_: Any, **_words: Any) -> Any:
        raise NotImplementedError("of this PyTorch")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(SpecError, match="does not take: of this PyTorch"):
        compile_network(free, "estimate", dims={"input.0": 9})  # beyond the largest
