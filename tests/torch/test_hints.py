"""What users are told: sizes that change from call to call, writes that nothing counts, order."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import polysci.torch as ours  # noqa: E402
from polysci.torch import state  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402
from polysci.torch.state import SizeWatch  # noqa: E402
from polysci.torch.variants import key_of  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
EAGER = {"rest": "eager", "threads": 1}


@pytest.fixture(autouse=True)
def forget_hints() -> Iterator[None]:
    state._told.clear()
    yield


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.name == state.__name__]


class Growing(nn.Module):
    """A step of a language model whose cache of keys grows by what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any, keys: Any) -> Any:
        keys = torch.cat((keys, self.key(x)), 1)
        return self.out(torch.softmax(x @ keys.transpose(1, 2), -1) @ keys), keys


def test_a_cache_that_grows_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    module = Growing().eval()
    step = torch.compile(module, backend=compile_graph, options=EAGER)
    x, keys = torch.randn(1, 1, 8), torch.randn(1, 3, 8)
    with torch.no_grad():
        for at in range(6):
            wanted, _ = module(x, keys)
            made, keys = step(x, keys)
            torch.testing.assert_close(made, wanted)
            assert len(hints(caplog)) == (at > 2), at
    (text,) = hints(caplog)
    assert "compiled for size 4, 5, 6 of l_keys_, axis 1: each new size" in text
    assert "cache_implementation='static'" in text


@pytest.mark.exhaustive
def test_free_sizes_of_optimize(caplog: pytest.LogCaptureFixture) -> None:
    module, size = nn.Linear(4, 2).eval(), torch.export.Dim("n", min=2, max=9)
    optimized = ours.optimize(
        module, torch.randn(2, 4), "estimate", threads=1, dynamic_shapes=[{0: size}]
    )  # fmt: skip
    for count in (3, 3, 4, 5):
        assert optimized(torch.randn(count, 4)).shape == (count, 2)
    (text,) = hints(caplog)
    assert "size 2, 3, 4 of args[0], axis 0:" in text


@pytest.mark.exhaustive
def test_graphs_that_learn(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Linear(4, 2)
    step = torch.compile(module, backend=compile_graph, options=EAGER, dynamic=True)
    for count in (3, 4, 5):
        step(torch.randn(count, 4)).sum().backward()
    assert "size 3, 4, 5 of" in hints(caplog)[0]


@pytest.mark.parametrize(
    "keys",
    [
        [(3, 4), (3, 5)],  # too few
        [(3, 4), (3, 5), (4, 6)],  # another size as well
        [(3, 4), (3, 5), (3, 4)],  # not one after the other
        [(3, 4), (3, 5), (3, 5, 1)],
        [(3, 4), (3, 4), (3, 4)],
    ],
)
def test_what_is_no_size_that_changes(
    keys: list[tuple[int, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    watch = SizeWatch(["x", "scale"])
    for shape in keys:
        watch.note(key_of([torch.empty(shape), 2.5]), 1.0)
    assert not hints(caplog)


def test_numbers_alone(caplog: pytest.LogCaptureFixture) -> None:
    watch = SizeWatch(["x", "n"])
    for number in (3, 4, 6):
        watch.note(key_of([torch.empty(2), number]), 1.0)
    assert "size 3, 4, 6 of n:" in hints(caplog)[0]


# Through a NumPy view of weights, 16 by 16, which nothing counts.
def write_all(a: Any) -> None:
    a[...] = a * 2 + 1


def write_half(a: Any) -> None:
    a[:8] = 1


def write_last(a: Any) -> None:
    a[-1, -1] += 3


def write_between(a: Any) -> None:
    a[7, 7] += 3


def write_row(a: Any) -> None:
    a[1] += 3


@pytest.mark.parametrize(
    ("write", "noticed"),
    [
        (write_all, True), (write_half, True), (write_last, True), (write_between, False),
        (write_row, False),
    ],
)  # fmt: skip
def test_writes_through_a_numpy_view(write: Callable[[Any], None], noticed: bool) -> None:
    """Those that reach none of the elements that are compared are told by ``refresh``."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval(), torch.ones(3, 16)
    optimized = ours.optimize(module, x, "estimate", threads=1)
    compiled = torch.compile(module, backend=compile_graph, options=EAGER)
    with torch.no_grad():
        before = optimized(x)
        compiled(x)
        write(module[0].weight.detach().numpy())
        wanted = module(x)
        assert not torch.allclose(wanted, before)
        for run in (optimized, compiled):
            assert np.allclose(run(x), wanted, atol=1e-5) == noticed
        optimized.refresh()
        torch.testing.assert_close(optimized(x), wanted)
        module[0].weight.mul_(1)  # which PyTorch counts
        torch.testing.assert_close(compiled(x), wanted)


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.exhaustive
def test_distributed_modules(one_process: None) -> None:
    """Compiled inside of DistributedDataParallel; PyTorch hands on none that is around it."""
    from torch.nn.parallel import DistributedDataParallel

    counted = list[Any]()

    def backend(graph: Any, inputs: Any, **words: Any) -> Any:
        counted.append(graph)
        return compile_graph(graph, inputs, **words)

    x, module = torch.randn(5, 4), nn.Linear(4, 2)
    outside = torch.compile(DistributedDataParallel(module), backend=backend, options=EAGER)
    outside(x).sum().backward()
    assert not counted
    inside = DistributedDataParallel(torch.compile(module, backend=backend, options=EAGER))
    inside(x).sum().backward()
    assert len(counted) == 1
    module.eval()
    optimized = ours.optimize(DistributedDataParallel(module).eval(), x, "estimate", threads=1)
    assert optimized.module is module and not optimized.report.reason
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), module(x))
