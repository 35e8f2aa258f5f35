"""PyTorch's operators: small integers are exact, forwards and backwards, in any memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ours = pytest.importorskip("polysci.torch")
theirs = torch.nn.functional

# A function, shapes of its operands, its words.
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "bias": ("conv2d", [(2, 6, 7, 9), (4, 6, 3, 3), (4,)], {"padding": 1}),
    "strides": ("conv2d", [(2, 4, 9, 7), (6, 2, 3, 2)],
                {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    "depthwise": ("conv2d", [(1, 8, 6, 6), (8, 1, 3, 3), (8,)],
                  {"padding": [1, 1], "groups": 8, "stride": [2]}),
    "same": ("conv2d", [(1, 4, 6, 5), (4, 4, 2, 3)], {"padding": "same"}),
    "valid": ("conv2d", [(1, 4, 6, 5), (4, 4, 2, 3)], {"padding": "valid"}),
    "image": ("conv2d", [(4, 6, 5), (4, 4, 1, 1), (4,)], {}),
    "line": ("conv1d", [(2, 6, 11), (4, 3, 3), (4,)], {"groups": 2, "stride": 2, "padding": 1}),
    "lines": ("conv1d", [(6, 11), (4, 6, 4)], {"padding": "same", "dilation": 1}),
    "volume": ("conv3d", [(1, 4, 5, 6, 4), (6, 4, 3, 2, 1), (6,)],
               {"stride": (1, 2, 1), "padding": (1, 0, 0)}),
    "transposed": ("conv_transpose2d", [(2, 6, 4, 5), (6, 4, 3, 3), (4,)],
                   {"stride": 2, "padding": 1, "output_padding": 1}),
    "transposed groups": ("conv_transpose2d", [(1, 6, 4, 5), (6, 2, 2, 3), (4,)],
                          {"stride": (1, 2), "groups": 2, "dilation": (2, 1)}),
    "wide": ("conv_transpose2d", [(1, 2, 4, 4), (2, 2, 3, 3)],
             {"dilation": 2, "output_padding": 1}),
    "rows": ("linear", [(2, 5, 6), (4, 6), (4,)], {}),
    "row": ("linear", [(6,), (4, 6)], {}),
    "matrices": ("matmul", [(5, 6), (6, 4)], {}),
    "batch": ("matmul", [(2, 1, 5, 6), (3, 6, 4)], {}),
    "batch and matrix": ("matmul", [(2, 3, 5), (5, 4)], {}),
    "dot": ("matmul", [(6,), (6,)], {}),
    "vector": ("matmul", [(2, 5, 6), (6,)], {}),
    "row and matrices": ("matmul", [(6,), (2, 6, 4)], {}),
    "attention": ("einsum", [(2, 5, 2, 4), (2, 3, 2, 4)], {"equation": "bqhd,bkhd->bhqk"}),
    "chain": ("einsum", [(2, 3), (3, 4, 2), (4, 5)], {"equation": "ab,bcz,cd->da"}),
    "ellipsis": ("einsum", [(3, 1, 4, 5), (2, 5, 6)], {"equation": "...ij,...jk->...ik"}),
    "ellipsis in front": ("einsum", [(3, 2, 4), (4,)], {"equation": "...a,a"}),
    "outer": ("einsum", [(3,), (4,)], {"equation": "i,j"}),
}  # fmt: skip


def integers(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype or torch.float32)


def function_of(module: Any, name: str, words: dict[str, Any]) -> Callable[..., Any]:
    """The function, or ``torch.einsum``, with its words."""
    if name == "matmul":
        return torch.matmul if module is theirs else ours.matmul
    if name == "einsum":
        einsum = torch.einsum if module is theirs else ours.einsum
        return lambda *operands: einsum(words["equation"], *operands)
    return lambda *operands: getattr(module, name)(*operands, **words)


@pytest.mark.sampled(every=9)
@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_of_integers_are_exact(case: str) -> None:
    name, shapes, words = CASES[case]
    operands = [integers(*shape, seed=at).requires_grad_() for at, shape in enumerate(shapes)]
    y = function_of(ours, name, words)(*operands)
    wide = [operand.detach().double().requires_grad_() for operand in operands]
    expected = function_of(theirs, name, words)(*wide)
    assert y.dtype == torch.float32 and torch.equal(y.double(), expected)
    dy = integers(*y.shape, seed=9)
    gradients = torch.autograd.grad(y, operands, dy)
    for ours_of, theirs_of in zip(
        gradients, torch.autograd.grad(expected, wide, dy.double()), strict=True
    ):
        assert torch.equal(ours_of.double(), theirs_of)
    with torch.no_grad():  # past the dispatcher, twice: found and kept
        for _ in range(2):
            assert torch.equal(function_of(ours, name, words)(*operands), y.detach())


# What users do to the memory of a tensor, by name.
MEMORY: dict[str, Callable[[Any], Any]] = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "a view": lambda x: torch.cat([x, x], 2)[:, :, x.shape[2] :],
    "every other": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "transposed": lambda x: x.mT.contiguous().mT,
    "some channels last": lambda x: torch.cat([x, x], 1)
    .to(memory_format=torch.channels_last)[:, x.shape[1] :],
    "expanded": lambda x: x[:1].expand_as(x),
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}  # fmt: skip


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("memory", MEMORY)
def test_any_memory_is_read(memory: str) -> None:
    x = MEMORY[memory](integers(2, 6, 7, 9))
    w, b = integers(4, 6, 3, 3), integers(4)
    with torch.no_grad():
        y = ours.conv2d(x, w, b, padding=1)
        turned = MEMORY[memory](w) if memory != "expanded" else w
        assert torch.equal(
            ours.conv2d(x, turned, b, padding=1), theirs.conv2d(x, turned, b, padding=1)
        )
    assert torch.equal(y, theirs.conv2d(x, w, b, padding=1))
    last = "channels" in memory
    assert y.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    matrix = x[0, 0]
    assert torch.equal(ours.matmul(matrix.mT, matrix), matrix.mT @ matrix)


def test_gradients_in_channels_last_and_from_expanded_ones() -> None:
    x = integers(2, 6, 7, 9).to(memory_format=torch.channels_last).requires_grad_()
    w = integers(4, 6, 3, 3).requires_grad_()
    ours.conv2d(x, w, padding=1).sum().backward()
    dx, dw = x.grad, w.grad
    x.grad = w.grad = None
    theirs.conv2d(x, w, padding=1).sum().backward()
    assert torch.equal(dx, x.grad) and torch.equal(dw, w.grad)


@pytest.mark.exhaustive
def test_second_gradients() -> None:
    for name in ("conv2d", "conv_transpose2d"):
        x, w = integers(1, 4, 5, 5).requires_grad_(), integers(4, 4, 3, 3).requires_grad_()
        grads = []
        for module in (ours, theirs):
            y = getattr(module, name)(x, w, stride=2, padding=1)
            (dx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
            grads.append(torch.autograd.grad((dx * dx).sum(), (x, w)))
        for one_of_ours, one_of_theirs in zip(*grads, strict=True):
            torch.testing.assert_close(one_of_ours, one_of_theirs, rtol=1e-6, atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x, w, b = (integers(*shape, dtype=kind) for shape in ((2, 4, 5, 5), (6, 4, 3, 3), (6,)))
    y = ours.conv2d(x, w, b, padding=1)
    assert y.dtype == kind
    assert torch.equal(y, theirs.conv2d(x.double(), w.double(), b.double(), padding=1).to(kind))
    rows, matrix = integers(3, 8, dtype=kind), integers(5, 8, dtype=kind)
    assert torch.equal(ours.linear(rows, matrix), (rows.double() @ matrix.double().mT).to(kind))


OPCHECKED: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "conv1d": lambda: (torch.ops.polysci.conv1d, (
        integers(2, 4, 9).requires_grad_(), integers(6, 4, 3).requires_grad_(), None,
        (1,), (1,), (1,), 1)),
    "conv2d": lambda: (torch.ops.polysci.conv2d, (
        integers(2, 4, 5, 6).requires_grad_(), integers(6, 2, 3, 3).requires_grad_(),
        integers(6).requires_grad_(), (2, 1), (1, 1), (1, 1), 2)),
    "channels last": lambda: (torch.ops.polysci.conv2d, (
        integers(2, 4, 5, 6).to(memory_format=torch.channels_last).requires_grad_(),
        integers(6, 4, 3, 3).requires_grad_(), None, (1, 1), (1, 1), (1, 1), 1)),
    "conv3d": lambda: (torch.ops.polysci.conv3d, (
        integers(1, 2, 4, 5, 3).requires_grad_(), integers(4, 2, 3, 1, 2).requires_grad_(),
        integers(4), (1, 1, 1), (1, 0, 0), (1, 1, 1), 1)),
    "conv2d_input": lambda: (torch.ops.polysci.conv2d_input, (
        integers(2, 6, 3, 3).requires_grad_(), integers(6, 4, 3, 3).requires_grad_(), None,
        (2, 2), (1, 1), (1, 1), 1, (5, 6))),
    "conv2d_weight": lambda: (torch.ops.polysci.conv2d_weight, (
        integers(2, 4, 5, 6).requires_grad_(), integers(2, 6, 3, 3).requires_grad_(), None,
        (2, 2), (1, 1), (1, 1), 1, (3, 3))),
    "conv_transpose2d": lambda: (torch.ops.polysci.conv_transpose2d, (
        integers(2, 4, 3, 3).requires_grad_(), integers(4, 2, 3, 3).requires_grad_(),
        integers(2), (2, 2), (1, 1), (1, 1), 1, (1, 1))),
    "linear": lambda: (torch.ops.polysci.linear, (
        integers(2, 3, 4).requires_grad_(), integers(5, 4).requires_grad_(), integers(5))),
    "matmul": lambda: (torch.ops.polysci.matmul, (
        integers(2, 3, 4).requires_grad_(), integers(4, 5).requires_grad_())),
    "lstm": lambda: (torch.ops.polysci.lstm_layer, (
        integers(4, 2, 3).requires_grad_(), [integers(1, 2, 5), integers(1, 2, 5)],
        [integers(20, 3).requires_grad_(), integers(20, 5)], False)),
    "gru": lambda: (torch.ops.polysci.gru, (
        integers(2, 4, 3), integers(1, 2, 5), [integers(15, 3), integers(15, 5)],
        False, 1, 0.0, False, False, True)),
    "einsum": lambda: (torch.ops.polysci.einsum, (
        "bij,bjk->bik", [integers(2, 3, 4).requires_grad_(), integers(2, 4, 5).requires_grad_()])),
}  # fmt: skip


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("case", OPCHECKED)
@pytest.mark.filterwarnings("ignore")  # of PyTorch's own tracing
def test_opcheck(case: str) -> None:
    overload, operands = OPCHECKED[case]()
    torch.library.opcheck(overload.default, operands)
