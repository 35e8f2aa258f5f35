"""Reproducible sums of PyTorch's operators: threads change no bit."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import polysci.torch as ours  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402
from polysci.torch.optimized_module import OptimizedModule  # noqa: E402

LONG = 20011  # terms, which threads share where they may


def tensors(*shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def lstm(x: Any, w: Any, u: Any, b: Any) -> Any:
    state = torch.zeros(1, x.shape[1], u.shape[1])
    return ours.lstm(x, [state, state], [w, u, b, b], True, 1, 0.0, True, False, False)[0]


OPERATORS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (ours.matmul, [(4, LONG), (LONG, 16)]),
    "linear": (ours.linear, [(3, LONG), (5, LONG), (5,)]),
    "einsum": (lambda a, b: ours.einsum("ik,jk->ij", a, b), [(4, LONG), (16, LONG)]),
    "conv2d": (lambda x, w: ours.conv2d(x, w, padding=1), [(2, 40, 19, 19), (8, 40, 3, 3)]),
    "lstm": (lstm, [(3, 2, 70), (36, 70), (36, 9), (36,)]),
}


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_and_their_gradients(name: str, two_torch_threads: None) -> None:
    function, shapes = OPERATORS[name]
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)  # which the option follows
        operands = tensors(*shapes)
        with ours.options(reproducible=True):
            y = function(*operands)
            results.append([y, *torch.autograd.grad(y.square().sum(), operands)])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def module() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(LONG, 24), torch.nn.GELU(), torch.nn.Linear(24, 4)
    return torch.nn.Sequential(*layers).eval()


def test_modules_and_what_that_costs() -> None:
    (x,) = tensors((2, LONG))
    made = [
        ours.optimize(module(), x, "estimate", threads=threads, reproducible=True)
        for threads in (1, 2)
    ]
    with torch.no_grad():
        one, two = (fast(x) for fast in made)
    assert torch.equal(one, two)
    (part,) = made[1].report.parts
    assert part.any_order_cost is not None and part.any_order_cost >= 1
    assert "of the time of any order" in str(made[1].report)
    plain = ours.optimize(module(), x, "estimate", threads=2).report.parts[0]
    assert plain.any_order_cost is None


def test_no_time_leaves_a_module_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "polysci.torch.variants.time_in_turns"
    monkeypatch.setattr(place, lambda eager, mine, device: (1.0, 2.0))
    (x,) = tensors((2, 16))
    layer = torch.nn.Linear(16, 4).eval()

    def optimize(reproducible: bool) -> OptimizedModule:
        return ours.optimize(layer, x, "measure", threads=1, reproducible=reproducible)

    assert optimize(True).report.reason == ""
    assert "eager was faster" in optimize(False).report.reason


def test_the_backend_takes_the_option() -> None:
    results = []
    for threads in (1, 2):
        torch._dynamo.reset()
        options = {"threads": threads, "reproducible": True, "rest": "eager"}
        learning = module().train()
        y = torch.compile(learning, backend=compile_graph, options=options)(*tensors((2, LONG)))
        y.square().sum().backward()
        results.append([y, *(parameter.grad for parameter in learning.parameters())])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
    with pytest.raises(Exception, match="reproducible: expected bool"):
        run = torch.compile(module(), backend=compile_graph, options={"reproducible": 1})
        run(*tensors((2, LONG)))
