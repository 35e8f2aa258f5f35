"""``torch.compile(model, backend="polysci")`` of models that learn: losses, gradients, state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch import dynamo  # noqa: E402
from tests.support.torch_models import MODULES  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
FACTOR = 32  # of what eager itself is off by
MODELS = (
    "mobilenet_v3", "convnext_t", "unet", "densenet121", "vit_ti", "bert_mini", "tagger",
    "autoencoder", "srcnn", "wavenet", "style_transfer", "swin", "yolo",
)  # fmt: skip
OPTIMIZERS: Mapping[str, Callable[[Any], Any]] = {
    "sgd": lambda values: torch.optim.SGD(values, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adam": lambda values: torch.optim.Adam(values, lr=1e-3),
}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of every pass that is compiled the report."""
    made, compile_own = list[Any](), dynamo.TracedGraph._compile

    def compile_and_note(self: Any, inputs: Any) -> Any:
        runs = compile_own(self, inputs)
        made.append(self.report)
        return runs

    monkeypatch.setattr(dynamo.TracedGraph, "_compile", compile_and_note)
    return made


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=dynamo.compile_graph, options={"rest": "eager", **options})


def without_dropout(module: Any) -> Any:
    """In training, but without numbers by chance."""
    for part in module.train().modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    return module


def loss_of(outputs: Any) -> Any:
    """Mean squares around numbers that are the same in every run."""
    numbers = torch.Generator().manual_seed(2)
    return sum(
        F.mse_loss(y, torch.randn(y.shape, generator=numbers).to(y.dtype))
        for y in torch.utils._pytree.tree_leaves(outputs)
    )


def learn(run: Any, module: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
    """The loss, and gradients and buffers by name."""
    module.zero_grad()
    loss = loss_of(run(*inputs))
    loss.backward()
    made = {name: x.grad for name, x in module.named_parameters() if x.grad is not None}
    return loss.detach(), {**made, **dict(module.named_buffers())}


def spread_of(module: Any, inputs: Any, exact: Mapping[str, Any]) -> Mapping[str, Any]:
    """How far gradients in f64 lie apart where weights differ by less than f32 tells apart.

    Beside a kink, such as that of ReLU, they jump.
    """
    apart = {name: torch.zeros_like(x) for name, x in exact.items()}
    for _ in range(8):
        other = copy.deepcopy(module)
        with torch.no_grad():
            for x in other.parameters():
                x.mul_(1 + torch.randn_like(x) * 2.0**-20)
        for name, x in learn(other, other, inputs)[1].items():
            apart[name] = torch.maximum(apart[name], (x - exact[name]).abs())
    return apart


def check_step(module: Any, run: Any, inputs: Any) -> float:
    """The loss; it and gradients are as near to a run in f64 as eager's, up to ``FACTOR``."""
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    wide, fresh = [x.double() if x.is_floating_point() else x for x in inputs], copy.deepcopy(exact)
    loss, own = learn(run, module, inputs)
    other, theirs = learn(eager, eager, inputs)
    wanted, numbers = learn(exact, exact, wide)
    assert own.keys() == theirs.keys() == numbers.keys()
    size = max(float(x.abs().max()) for x in numbers.values() if x.numel())
    off = max(float((theirs[name] - x).abs().max()) for name, x in numbers.items() if x.numel())
    bound = max(FACTOR * off, 2.0**-18 * size)
    spread: Mapping[str, Any] = {}
    for name, x in numbers.items():
        assert own[name].dtype == theirs[name].dtype and own[name].shape == x.shape
        error = (own[name] - x).abs()
        if float(error.max()) > bound:
            spread = spread or spread_of(fresh, wide, numbers)
            error -= 2 * spread[name].max()
        assert float(error.max()) <= bound, name
    off = max(FACTOR * abs(float(other - wanted)), 2.0**-18 * float(wanted))
    assert abs(float(loss - wanted)) <= off
    return float(loss)


def check_steps(module: Any, inputs: Any, optimizer: str, steps: int) -> None:
    """Every step beside eager's from the same weights; and the model learns."""
    run, step = compiled(module), OPTIMIZERS[optimizer](module.parameters())
    losses = list[float]()
    for _ in range(steps):
        losses.append(check_step(module, run, inputs))
        step.step()
    assert losses[-1] < losses[0]


def test_an_mlp_learns(passes: list[Any]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 4))
    check_steps(module, (torch.randn(5, 7),), "sgd", 5)
    assert len(passes) == 2 and all(len(report.parts) == 1 for report in passes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_models_learn_as_in_eager(name: str, passes: list[Any]) -> None:
    module = without_dropout(MODULES[name].module())
    check_steps(module, MODULES[name].inputs(), "adam" if name < "m" else "sgd", 20)
    parts = [part for report in passes for part in report.parts]
    if name != "tagger":  # whose LSTM TorchDynamo leaves to eager, and all around it
        assert len(parts) >= 2 and not any(part.reason for part in parts)


class Tied(nn.Module):
    """A language model whose last layer has the weights of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(11, 6), nn.Linear(6, 6)

    def forward(self, words: Any) -> Any:
        return F.linear(F.gelu(self.mix(self.words(words))), self.words.weight)


class Inplace(nn.Module):
    """Operators that change tensors, views of them, and parameters that others are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.last = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        y[:, :2] *= 2
        y.add_(1)
        return self.last(F.silu(y, inplace=True)).t()


def check_tied_weights() -> None:
    torch.manual_seed(0)
    check_steps(Tied(), (torch.randint(0, 11, (3, 5)),), "sgd", 3)


def check_parametrisations_and_changes_in_place() -> None:
    torch.manual_seed(0)
    module, x = Inplace(), torch.randn(4, 6)
    eager, run = copy.deepcopy(module), compiled(module)
    loss, own = learn(run, module, (x,))
    other, theirs = learn(eager, eager, (x,))
    torch.testing.assert_close(loss, other)
    torch.testing.assert_close(own, theirs)


def check_gradients_of_inputs_hooks_and_checkpoints() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    run = compiled(lambda x: torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + x)
    x = torch.randn(4, 6)
    made, seen = [], list[Any]()
    for call in (run, lambda x: body(x) + x):
        own = x.clone().requires_grad_()
        own.register_hook(seen.append)
        call(own).square().sum().backward()
        made.append([own.grad, *(p.grad.clone() for p in body.parameters())])
        body.zero_grad()
    torch.testing.assert_close(*made)
    torch.testing.assert_close(*seen)


def check_last_batches_and_none() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    run = compiled(module)
    for batch in (4, 3, 4, 0, 2):
        x = torch.randn(batch, 6)
        other = copy.deepcopy(module)
        torch.testing.assert_close(learn(run, module, (x,)), learn(other, other, (x,)),
                                   equal_nan=True)  # fmt: skip


@pytest.mark.exhaustive
def test_each_free_size_is_compiled_once(
    passes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.LazyLinear(3))
    module(torch.randn(2, 3, 9))
    run = torch.compile(module, backend=dynamo.compile_graph, dynamic=True)
    monkeypatch.setattr(dynamo, "KEPT", 2)
    # Batches, and how many passes are compiled by then: the third size takes the first one's place.
    for batch, count in ((4, 2), (3, 4), (4, 4), (5, 6), (4, 6), (3, 8)):
        x, other = torch.randn(batch, 3, 9), copy.deepcopy(module)
        torch.testing.assert_close(learn(run, module, (x,)), learn(other, other, (x,)))
        assert len(passes) == count and not any(report.refused for report in passes)


def test_gradcheck_does_not_lie() -> None:
    """In f64, which polysci does not compute in."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compiled(module), (x,))


def check_dropout_is_drawn_anew_and_follows_the_seed() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 50), nn.Dropout(0.3), nn.Linear(50, 40))
    run, x = compiled(module), torch.randn(8, 40)
    losses = list[float]()
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append(float(learn(run, module, (x,))[0]))
        torch.manual_seed(seed)
        other = copy.deepcopy(module)
        assert losses[-1] == pytest.approx(float(learn(other, other, (x,))[0]), rel=1e-5)
    assert losses[0] == losses[2] != losses[1]


def check_changes_reach_what_dropout_hands_on() -> None:
    torch.manual_seed(0)
    layer, drop = nn.Linear(6, 8), nn.Dropout().eval()

    def function(x: Any) -> Any:
        x = torch.dropout(F.dropout(x, p=0.0), 0.5, train=False)
        y = drop(z := layer(x))
        y.mul_(2)
        z.add_(1)
        return y * z, x

    x = torch.randn(4, 6)
    run = compiled(function)
    assert run(x)[1] is x
    made = learn(run, layer, (x,))
    torch.testing.assert_close(made, learn(function, layer, (x,)))


USES = (
    check_changes_reach_what_dropout_hands_on,
    check_tied_weights,
    check_parametrisations_and_changes_in_place,
    check_gradients_of_inputs_hooks_and_checkpoints,
    check_last_batches_and_none,
    check_dropout_is_drawn_anew_and_follows_the_seed,
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", USES, ids=lambda check: check.__name__)
def test_uses(check: Callable[[], None]) -> None:
    check()
