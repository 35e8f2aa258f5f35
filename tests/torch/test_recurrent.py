"""lstm and gru beside PyTorch's, forwards and backwards."""

from __future__ import annotations

from typing import Any

import pytest

from polysci.errors import UnsupportedError

torch = pytest.importorskip("torch")
ours = pytest.importorskip("polysci.torch")

STEPS, BATCH, COLUMNS, HIDDEN = 4, 3, 5, 6
CASES = {
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {}),
    "lstm of two layers": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "gru of two layers": ("GRU", {"num_layers": 2, "bidirectional": True, "bias": False}),
    "gru, batch first": ("GRU", {"batch_first": True}),
}


def prepare(case: str) -> tuple[Any, Any, list[Any]]:
    """PyTorch's module, x and first states."""
    torch.manual_seed(0)
    kind, words = CASES[case]
    module = getattr(torch.nn, kind)(COLUMNS, HIDDEN, **words)
    lead = (BATCH, STEPS) if module.batch_first else (STEPS, BATCH)
    x = torch.randn(*lead, COLUMNS, requires_grad=True)
    directions = module.num_layers * (1 + module.bidirectional)
    states = [
        torch.randn(directions, BATCH, HIDDEN, requires_grad=True)
        for _ in range(1 + (kind == "LSTM"))
    ]
    return module, x, states


def call(module: Any, x: Any, states: list[Any]) -> tuple[Any, ...]:
    """Ours, by the weights of the module."""
    function = ours.lstm if len(states) == 2 else ours.gru
    return function(
        x, states if len(states) == 2 else states[0], module._flat_weights, module.bias,
        module.num_layers, module.dropout, module.training, module.bidirectional,
        module.batch_first,
    )  # fmt: skip


def reference(module: Any, x: Any, states: list[Any]) -> tuple[Any, ...]:
    y, last = module(x, tuple(states) if len(states) == 2 else states[0])
    return (y, *last) if len(states) == 2 else (y, last)


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients(case: str) -> None:
    module, x, states = prepare(case)
    results = call(module, x, states)
    shares = [torch.randn(result.shape) for result in results]
    operands = [x, *states, *module.parameters()]
    gradients = torch.autograd.grad(results, operands, shares)
    with torch.inference_mode():
        again = call(module, x, states)
    module = module.double()
    wide = [operand.detach().double().requires_grad_() for operand in (x, *states)]
    expected = reference(module, wide[0], wide[1:])
    of_theirs = torch.autograd.grad(
        expected, [*wide, *module.parameters()], [share.double() for share in shares]
    )
    for ours_of, theirs_of in zip((*results, *again), expected * 2, strict=True):
        torch.testing.assert_close(ours_of.double(), theirs_of, rtol=1e-5, atol=1e-6)
    for ours_of, theirs_of in zip(gradients, of_theirs, strict=True):
        torch.testing.assert_close(ours_of.double(), theirs_of, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_calls_past_the_dispatcher_notice_what_is_different(case: str) -> None:
    module, x, states = prepare(case)
    turned = x.detach().movedim(0, 2).contiguous().movedim(2, 0)

    def compare(x: Any, states: list[Any], *, learns: bool = False) -> None:
        for _ in range(2):
            own, theirs = call(module, x, states), reference(module, x, states)
            assert [y.requires_grad for y in own] == [learns] * len(own)
            for one, other in zip(own, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    with torch.no_grad():
        compare(x, states)
        compare(turned, states)
        compare(x[:, :2], [state[:, :2] for state in states] if not module.batch_first else states)
        for parameter in module.parameters():
            parameter.mul_(0.5)
        compare(x, states)
        compare(torch._neg_view(x), states)
        with torch.inference_mode():
            compare(x + 1, states)
        again = [y.clone() for y in call(module, x, states)]
        other = call(module, x, states)  # has memory of its own
        for one, two in zip(again, other, strict=True):
            assert torch.equal(one, two)
    compare(x, states, learns=True)
    module.requires_grad_(False)
    frozen = [state.detach() for state in states]
    compare(x.detach(), frozen)
    compare(x.detach().requires_grad_(), frozen, learns=True)


def test_wrong_arguments_after_right_ones() -> None:
    module, x, states = prepare("lstm")
    with torch.no_grad():
        call(module, x, states)
        weights = module._flat_weights
        for wrong, told in (
            (weights[:2], "expected 4 parameters"),
            ([*weights, weights[0]], "expected 4 parameters"),
            ([weights[0][:, 1:], *weights[1:]], "expected shape"),
            ([weights[0].double(), *weights[1:]], "params"),
        ):
            with pytest.raises((UnsupportedError, ValueError, TypeError), match=told):
                ours.lstm(x, states, wrong, True, 1, 0.0, False, False, False)
        ours.lstm(x, states, weights, True, 1, 0.0, False, False, False)


def test_some_results_alone_have_gradients() -> None:
    module, x, states = prepare("lstm")
    (ours_of,) = torch.autograd.grad(call(module, x, states)[2].sum(), x)
    (theirs_of,) = torch.autograd.grad(reference(module, x, states)[2].sum(), x)
    torch.testing.assert_close(ours_of, theirs_of, rtol=1e-5, atol=1e-6)


def test_no_sequences_and_narrow_ones() -> None:
    module, x, states = prepare("gru")
    assert call(module, x[:, :0], [states[0][:, :0]])[0].shape == (STEPS, 0, HIDDEN)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y, _ = call(module, x, states)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), reference(module, x, states)[0], rtol=0.05, atol=0.05)


def test_autocast_leaves_weights_as_they_are() -> None:
    module, x, states = prepare("lstm")
    with torch.autocast("cpu", torch.bfloat16):
        results = call(module, x, states)
    own = torch.autograd.grad(results[0].float().square().sum(), [x, *module.parameters()])
    y = reference(module, x, states)[0]
    theirs = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
    assert {result.dtype for result in results} == {torch.bfloat16}
    for ours_of, theirs_of in zip(own, theirs, strict=True):
        assert ours_of.dtype == torch.float32
        torch.testing.assert_close(ours_of, theirs_of, rtol=0.05, atol=0.1)


def test_wrong_arguments_are_named() -> None:
    module, x, states = prepare("lstm")
    with pytest.raises(ValueError, match=r"params\[0\]: expected shape \(24, 4\)"):
        call(module, x[..., 1:], states)
    with pytest.raises(ValueError, match=r"hx\[0\]: expected shape \(1, 2, 6\)"):
        call(module, x[:, 1:], states)
    with pytest.raises(UnsupportedError, match=r"lstm: input: expected .*got torch.float64"):
        call(module, x.double(), states)
    projected = torch.nn.LSTM(COLUMNS, HIDDEN, proj_size=2)
    with pytest.raises(UnsupportedError, match="projections"):
        call(projected, x, states)
    results = call(module, x, states)
    (dx,) = torch.autograd.grad(results[0].sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match="no second gradients"):
        dx.sum().backward()
