"""Optimized modules among processes, threads, tracers, default devices and other values."""

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
import polysci.torch as ours  # noqa: E402
from polysci.torch import variants  # noqa: E402
from polysci.torch.compiled_part import CompiledPart  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


def layers() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()


def compiled(module: Any, **words: Any) -> Any:
    return torch.compile(module, backend=compile_graph, options={"rest": "eager"}, **words)


def test_pickles_for_other_processes_hold_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """``multiprocessing`` moves tensors to shared memory while it pickles them."""
    module, x, moved = layers(), torch.randn(2, 4), list[bool]()
    fast = ours.optimize(module, x, level="estimate")
    wanted, reduce = fast(x), CompiledPart.__reduce__

    def note(part: Any) -> Any:
        moved.append(module[0].weight.is_shared())
        return reduce(part)

    monkeypatch.setattr(CompiledPart, "__reduce__", note)
    for _ in range(2):  # before the weights moved, and after
        other = pickle.loads(ForkingPickler.dumps(fast))
        assert other.report.parts and torch.equal(other(x), wanted)
    assert moved == [False] and module[0].weight.is_shared()
    assert torch.equal(fast(x), wanted)


def test_stored_modules_whose_weights_changed_are_compiled_again() -> None:
    module, x, file = layers(), torch.randn(2, 4), io.BytesIO()
    fast = ours.optimize(module, x, level="estimate")
    with torch.no_grad():
        module[0].weight.mul_(2)
    torch.save(fast, file)
    file.seek(0)
    for other in (copy.copy(fast), copy.deepcopy(fast), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(x), module(x).detach())
        assert other._variants[other._first].runs is not None


FORK = """
import os, torch, polysci.torch as ours
torch.set_num_threads(2)
module = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3), torch.nn.ReLU()).eval()
x = torch.randn(2, 8, 20, 20)
fast = ours.optimize(module, x, "estimate")
wanted = fast(x)
child = os.fork()
if not child:
    os._exit(0 if torch.equal(fast(x), wanted) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(fast(x), wanted)
"""


def test_a_child_of_fork_runs_networks_of_more_threads() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], timeout=120, capture_output=True, text=True,
        cwd=Path(__file__).parents[2], env=os.environ,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_a_default_device_does_not_count() -> None:
    module, x = layers(), torch.randn(2, 4)
    fast = ours.optimize(module, x, level="estimate")
    with torch.no_grad():
        module[0].weight.mul_(2)
        wanted = module(x)
    with torch.device("meta"):
        made = fast(x)  # which compiles it again
    assert made.is_cpu
    torch.testing.assert_close(made, wanted)


class Scaled(nn.Module):
    """Python's numbers decide what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any, factor: Any) -> Any:
        return self.layer(x) * (2 if factor is True else 1 / (abs(factor) + 1))


@pytest.mark.parametrize(("first", "other"), [(True, 1), (1, 1.0), (0.0, -0.0)])
def test_equal_numbers_are_not_the_same(first: Any, other: Any) -> None:
    x = torch.randn(2, 4)
    fast = ours.optimize(Scaled().eval(), (x, first), level="estimate")
    fast(x, first)
    with pytest.raises(ValueError, match=f"expected {first}, got {other}"):
        fast(x, other)


class Buffers(nn.Module):
    """Weights that are buffers, and of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.randn(4, 4))
        self.last = nn.Linear(4, 3).double()

    def forward(self, x: Any) -> Any:
        return self.last((x @ self.first).to(self.last.weight.dtype))


def test_conversions_reach_every_tensor() -> None:
    torch.manual_seed(0)
    module, x = Buffers().eval(), torch.randn(2, 4)
    fast = ours.optimize(module, x, level="estimate")
    fast.float()
    assert {t.dtype for t in fast.state_dict().values()} == {torch.float32}
    torch.testing.assert_close(fast(x), module(x).detach())
    fast.double()
    assert module.first.dtype == torch.float64
    torch.testing.assert_close(fast(x.double()), module(x.double()).detach())
    empty = ours.optimize(nn.Softmax(-1).eval(), x, level="estimate").double()
    torch.testing.assert_close(empty(x.double()), x.double().softmax(-1))


def test_formats_reach_the_module() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), torch.randn(1, 3, 6, 6)
    fast = ours.optimize(module, x, level="estimate").to(memory_format=torch.channels_last)
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fast(x), module(x).detach())


def test_torchdynamo_does_not_enter_optimized_modules() -> None:
    """Else it compiles polysci's own code, for minutes."""
    module, first, x = layers(), nn.Linear(4, 4).eval(), torch.randn(2, 4)
    fast, graphs = ours.optimize(module, x, level="estimate"), list[Any]()

    def function(x: Any) -> Any:
        return fast(first(x)).relu()

    def note(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    other = torch.compile(function, backend=note)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(other(x), module(first(x)).relu())
            module[0].weight.mul_(2)  # which compiles it again
        assert len(graphs) == 2  # before it, and behind it
        torch._dynamo.reset()
        with pytest.raises(Exception, match="an optimized module is compiled already"):
            torch.compile(function, backend=note, fullgraph=True)(x)


def test_another_thread_may_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export says that it runs to all threads."""
    x = torch.randn(2, 4)
    fast = ours.optimize(layers(), x, level="estimate")
    wanted = fast(x)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert torch.equal(fast(x), wanted)


def test_threads_compile_one_module_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    module, export = layers(), torch.export.export
    free = ({0: torch.export.Dim("rows", max=64)},)
    fast = ours.optimize(module, torch.ones(2, 4), level="estimate", dynamic_shapes=free)
    wanted, inside, made = fast(torch.ones(2, 4))[:1], list[int](), list[Any]()

    def export_alone(*args: Any, **words: Any) -> Any:
        inside.append(threading.get_ident())
        assert {*inside} == {threading.get_ident()}
        try:
            return export(*args, **words)
        finally:
            inside.pop()

    def call(rows: int) -> None:
        made.append(fast(torch.ones(rows, 4)))

    monkeypatch.setattr(torch.export, "export", export_alone)
    compiled_sizes = list[Any]()
    compile_module = variants.compile_module
    monkeypatch.setattr(
        "polysci.torch.optimized_module.compile_module",
        lambda *args: (compiled_sizes.append(1), compile_module(*args))[1],
    )
    workers = [threading.Thread(target=call, args=(rows,)) for rows in (3, 4, 3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == 4 and len(compiled_sizes) == 2
    for y in made:
        torch.testing.assert_close(y, wanted.expand(len(y), 3))


def test_marked_sizes() -> None:
    module = layers()
    other = compiled(module)
    x = torch.randn(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    fast = ours.optimize(module, x, level="estimate")
    assert fast.report.parts
    torch._dynamo.reset()
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(other(x), module(x))


class Views(nn.Module):
    """Views of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y, y[:, :3], y.t()


@pytest.mark.parametrize("learns", [False, True])
def test_results_of_compiled_graphs_stay_views(learns: bool) -> None:
    module, x = Views().eval(), torch.randn(2, 4)
    with torch.set_grad_enabled(learns):
        made = compiled(module)(x)
        torch.testing.assert_close(made, module(x))
        with torch.no_grad():
            made[0].zero_()
        assert not any(y.any() for y in made)


class Pair(NamedTuple):
    """What a module may return."""

    y: Any
    nothing: None


class Words(nn.Module):
    """Rows of a table, of places that somebody gives."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, places: Any) -> Any:
        return Pair(self.layer(self.table(places.long().flatten(1))), None)


class Places(nn.Module):
    def forward(self, x: Any, places: Any) -> Any:
        x = x.relu()
        return x[places], x.gather(1, places.abs()), x.index_select(1, places[0].abs())


def test_places_outside_of_a_table_are_refused() -> None:
    module, places = Words().eval(), torch.randint(0, 10, (2, 5), dtype=torch.int32)
    fast = ours.optimize(module, places, level="estimate")
    assert isinstance(fast(places), Pair)
    torch.testing.assert_close(fast(places)[0], module(places)[0].detach())
    with torch.no_grad():
        other = compiled(module)
        for run in (fast, other):
            run(places)
            for wrong in (10, -1):
                with pytest.raises(IndexError, match=f"expected 0 to 9, got {wrong}"):
                    run(torch.full_like(places, wrong))
    x, places = torch.randn(3, 5), torch.tensor([[-3, 2]])
    fast = ours.optimize(Places().eval(), (x, places), level="estimate")
    for own, wanted in zip(fast(x, places), Places()(x, places), strict=True):
        assert torch.equal(own, wanted)
    with pytest.raises(IndexError, match="expected -3 to 2, got -4"):
        fast(x, places - 1)
