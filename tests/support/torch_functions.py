"""Functions of one tensor, by kinds: together they call most operators that programs have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


def _inside(function: Callable[..., Any], into: Callable[..., Any], x: Any) -> Any:
    """Of x moved into the domain of a function."""
    return function(into(x))


def weights(*shape: int) -> Any:
    """Numbers between -1 and 1 that no two places share."""
    return torch.tensor(np.sin(np.arange(np.prod(shape)) * 1.7).astype(np.float32).reshape(shape))


def _written(x: Any) -> Any:
    y = x.clone()
    y[:, 1] += 1
    y[1:3, :, 2].mul_(3)
    return y.relu_()


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *(
                "relu",
                "sigmoid",
                "tanh",
                "erf",
                "exp",
                "neg",
                "abs",
                "sign",
                "floor",
                "ceil",
                "round",
            ),
            *("sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "square", "exp2", "expm1"),
            *("isnan", "isinf", "logical_not", "isfinite", "trunc", "frac", "positive"),
        )
    },
    **{
        name: getattr(F, name)
        for name in (
            *(
                "silu",
                "hardswish",
                "hardsigmoid",
                "hardtanh",
                "relu6",
                "logsigmoid",
                "softplus",
                "elu",
            ),
            *("selu", "celu", "gelu", "leaky_relu", "mish", "softsign", "tanhshrink", "softshrink"),
            *("hardshrink",),
        )
    },
    **{
        name: partial(_inside, getattr(torch, name), lambda x: x.abs() + 0.1)
        for name in (*("log", "sqrt", "rsqrt", "reciprocal", "log1p", "log2", "log10"),)
    },
    **{
        name: partial(_inside, getattr(torch, name), torch.tanh)
        for name in (
            "asin",
            "acos",
            "atanh",
        )
    },
    "acosh": lambda x: torch.acosh(1.5 + x.abs()),
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus of beta": lambda x: F.softplus(x, 3.0, 2.0),
    "softplus far": lambda x: F.softplus(x * 100),
    "elu of alpha": lambda x: F.elu(x, 0.3),
    "threshold": lambda x: F.threshold(x, 0.2, -3.0),
    "glu": lambda x: F.glu(x, 0),
    "prelu": lambda x: F.prelu(x, torch.arange(3.0)),
    "log1p near 0": lambda x: torch.log1p(x * 1e-9) * 1e9,
    "expm1 near 0": lambda x: torch.expm1(x * 1e-9) * 1e9,
    "clamp": lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp(max=x.mean())),
    "add": lambda x: (x + 1, 1 + x, x + x[0], torch.add(x, x, alpha=2), x - 1, 2 - x, 3 * x),
    "sub": lambda x: (torch.sub(x, x.abs(), alpha=3), torch.rsub(x, 1, alpha=2)),
    "div": lambda x: (
        x / 3,
        1 / (x.abs() + 1),
        *(torch.div(x, 0.3, rounding_mode=mode) for mode in ("floor", "trunc")),
    ),
    "div of integers": lambda x: (
        (j := (x * 10).long()) / 3,
        j // 3,
        j % 3,
        -j % 3,
        torch.fmod(j, 3),
        j // -3,
        torch.div(j, 3, rounding_mode="trunc"),
    ),
    "remainder": lambda x: (x % 0.3, torch.fmod(x, 0.3), torch.remainder(x, -0.7)),
    "pow": lambda x: (x**2, x**3, 2**x, x.abs() ** 0.5, x.abs() ** x, x**-1),
    "extremes": lambda x: (torch.maximum(x, -x), torch.minimum(x, x[0])),
    "comparisons": lambda x: (
        x > 0,
        x >= x[0],
        x < 0.1,
        x <= 0,
        x == x,
        x != 0,
        (x * 9).long() > 0.5,
    ),
    "logic": lambda x: (
        (x > 0) & (x < 1),
        (x > 0) | (x < -1),
        (x > 0) ^ (x > 1),
        ~(x > 0),
        torch.logical_and(x, x > 0),
    ),
    "bits": lambda x: ((j := (x * 9).long()) & 5, j | 3, j ^ 1, ~j),
    "where": lambda x: (
        torch.where(x > 0, x, 0.5),
        torch.where(x > 0, x, x[0]),
        x.masked_fill(x > 0, -7),
    ),
    "promotion": lambda x: ((x * 9).long() * 0.5, (x > 0) * 3, (x > 0) + x, x + (x[0] * 9).long()),
    "types": lambda x: (x.double(), x.long(), x.to(torch.int32), x.bool(), x.half().float()),
    "addcmul": lambda x: (torch.addcmul(x, x, x, value=0.5), torch.lerp(x, -x, 0.3)),
    "constants": lambda x: x + torch.arange(5) + torch.ones(3, 1) + torch.linspace(0, 1, 5),
}
MOVING: dict[str, Callable[..., Any]] = {
    "views": lambda x: (
        x.view(4, 15),
        x.reshape(-1),
        x.flatten(1),
        x.unsqueeze(1),
        x[None],
        x.unsqueeze(1).squeeze(1),
        x.unflatten(-1, (5, 1)),
        x.contiguous(),
    ),
    "orders": lambda x: (x.permute(2, 0, 1), x.transpose(0, 2), x[0].t(), x.mT, x.movedim(0, 2)),
    "slices": lambda x: (x[1], x[:, 1:3], x[..., ::2], x[-1, :, -2:], x[:, -2], x.narrow(1, 1, 2)),
    "parts": lambda x: (*x.chunk(2, 1), *x.split(2), *x.split([1, 4], 2), *x.unbind(1)),
    "joined": lambda x: (torch.cat([x, x], 1), torch.stack([x, -x], -1), torch.cat([x, x[:1]])),
    "joined alone": lambda x: (torch.cat([x.new_empty(0), x], 1) + 1, torch.cat([x])),
    "repeats": lambda x: (
        x.repeat(2, 1, 3),
        x.expand(2, 4, 3, 5),
        x[:, :1].expand(4, 3, 5),
        x.repeat_interleave(2, 1),
        torch.tile(x, (2,)),
    ),
    "turned": lambda x: (
        x.flip(0, 2),
        x.roll(1, 0),
        x.roll((-1, 7), (1, 2)),
        torch.rot90(x, 1, (1, 2)),
    ),
    "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1)),
    "pads": lambda x: (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 2, 0, 1), value=3.0),
        F.pad(x, (-1, 1)),
        F.pad(x, (2, 1), "reflect"),
        F.pad(x, (2, 1), "replicate"),
        F.pad(x, (2, 1), "circular"),
    ),
    "places": lambda x: (
        x[torch.tensor([2, 0])],
        x[:, torch.tensor([[1, -1], [0, 2]])],
        x[torch.tensor([0, 1]), torch.tensor([2, 1])],
        x[:, torch.tensor([0, 1]), torch.tensor([[2], [1]])],
        x.index_select(1, torch.tensor([2, 2, 0])),
        x.gather(2, (x * 9).long() % 5),
        torch.take_along_dim(x, x.argsort(1), 1),
    ),
    "embedding": lambda x: F.embedding((x * 9).long() % 4, torch.arange(12.0).view(4, 3)),
    "scatters": lambda x: (torch.slice_scatter(x, x[:, :1], 1, 1, 2), x.select_scatter(x[0], 0, 2)),
    "written": lambda x: _written(x),
    "like": lambda x: (
        torch.zeros_like(x),
        torch.ones_like(x),
        torch.full_like(x, 3),
        x.new_ones(2),
    ),
    "sorted": lambda x: (*x.topk(2, 1), *x.sort(-1), *x.sort(0, descending=True), x.argsort()),
    "pixels": lambda x: (
        F.pixel_shuffle(x.repeat(2, 1, 1)[None, :8], 2),
        F.pixel_unshuffle(x[None, :, :2, :4], 2),
    ),
    "windows": lambda x: x.unfold(2, 3, 1),
}
SUMS: dict[str, Callable[..., Any]] = {
    "sums": lambda x: (
        x.sum(),
        x.sum(1),
        x.sum((0, 2), keepdim=True),
        x.mean(),
        x.mean(-1),
        x.prod(1),
        (x > 0).sum(0),
        (x * 9).long().sum(1),
        x.sum(1, dtype=torch.float64),
    ),
    "extremes": lambda x: (
        x.amax(1),
        x.amin((0, 1)),
        x.max(),
        x.min(),
        *x.max(1),
        *x.min(-1, True),
        x.argmax(),
        x.argmax(1),
        x.argmin(0, keepdim=True),
    ),
    "truth": lambda x: ((x > 1).any(), (x > 0).all(1), x.any(0), (x > -9).all()),
    "variances": lambda x: (x.var(), x.var(1), x.std(0, correction=0), *torch.var_mean(x, 1)),
    "norms": lambda x: (
        x.norm(),
        x.norm(1, 1),
        torch.linalg.vector_norm(x, float("inf"), 1),
        F.normalize(x, dim=1),
        x.logsumexp(1),
    ),
    "shares": lambda x: (x.softmax(1), x.log_softmax(-1), F.softmin(x, 0)),
    "running": lambda x: (x.cumsum(1), x.cumprod(0)),
    "distances": lambda x: (
        F.cosine_similarity(x, x[:1], dim=1),
        F.mse_loss(x, x[:1].expand_as(x)),
    ),
    "layer norm": lambda x: (F.layer_norm(x, (5,)), F.layer_norm(x, (3, 5), torch.ones(3, 5) * 2)),
    "rms norm": lambda x: F.rms_norm(x, (5,), torch.arange(5.0)),
    "group norm": lambda x: F.group_norm(x[..., None].permute(0, 2, 1, 3).repeat(1, 2, 1, 1), 5),
    "instance norm": lambda x: F.instance_norm(x),
    "batch norm": lambda x: F.batch_norm(
        x, torch.arange(3.0), torch.arange(3.0) + 1, torch.ones(3)
    ),
}
IMAGES: dict[str, Callable[..., Any]] = {
    "conv1d": lambda x: F.conv1d(x[:, :, 0], weights(5, 4, 3), weights(5), 2, 1, 2),
    "conv2d": lambda x: (
        F.conv2d(x, weights(6, 2, 3, 3), None, 1, "same", groups=2),
        F.conv2d(x, weights(6, 4, 2, 2), None, 1, "same"),
        F.conv2d(x[0], weights(6, 4, 2, 3), weights(6), (2, 1), (0, 1)),
    ),
    "conv3d": lambda x: F.conv3d(x[None], weights(3, 2, 2, 3, 3), weights(3)),
    "transposes": lambda x: (
        F.conv_transpose2d(x, weights(4, 3, 3, 3), None, 2, 1, 1),
        F.conv_transpose2d(x, weights(4, 3, 2, 2), weights(6), 2, groups=2),
        F.conv_transpose1d(x[:, :, 0], weights(4, 3, 3), None, 3),
    ),
    "maxima": lambda x: (
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, (2, 3), ceil_mode=True),
        F.max_pool1d(x[0], 2),
        F.max_pool3d(x[None], 2),
        F.max_pool2d(x, 2, 1, 0, 2),
        F.max_pool2d(x[0], 2),
    ),
    "means": lambda x: (
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool1d(x[0], 2),
    ),
    "adaptive": lambda x: (
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 4)),
        F.adaptive_avg_pool1d(x[0], 3),
        F.adaptive_max_pool2d(x, (3, 1)),
    ),
    "nearest": lambda x: (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(5, 11)),
        F.interpolate(x, scale_factor=(1.5, 2.5)),
        F.interpolate(x[0], 13),
    ),
    "linear": lambda x: (
        F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        F.interpolate(x, size=(9, 5), mode="bilinear"),
        F.interpolate(x, size=(9, 5), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=1.3, mode="bilinear"),
        F.interpolate(x[0], scale_factor=2.0, mode="linear"),
        F.interpolate(x, size=(9, 5), mode="bicubic"),
    ),
    "sampled": lambda x: F.grid_sample(
        x, x.permute(0, 2, 3, 1)[..., :2].tanh(), align_corners=False
    ),
}
PRODUCTS: dict[str, Callable[..., Any]] = {
    "linear": lambda x: (
        F.linear(x, weights(7, 5), weights(7)),
        F.linear(x, weights(2, 5)),
        F.linear(x[0, 0], weights(2, 5)),
    ),
    "products": lambda x: (
        x @ x.mT,
        x[0] @ x[1].t(),
        torch.bmm(x, x.mT),
        x @ weights(5),
        torch.matmul(x[:, None], weights(4, 5, 2)),
        torch.mv(x[0], weights(5)),
    ),
    "addmm": lambda x: (
        torch.addmm(weights(3), x[0], x[1].t(), beta=0.5, alpha=2),
        torch.addmm(x[0] @ x[1].t(), x[0], x[1].t()),
        torch.baddbmm(x @ x.mT, x, x.mT, beta=2, alpha=3),
    ),
    "einsum": lambda x: (
        torch.einsum("bij,bkj->bik", x, x),
        torch.einsum("bij,jk", x, weights(5, 2)),
    ),
    "attention": lambda x: (
        F.scaled_dot_product_attention(q := x[None], q, q),
        F.scaled_dot_product_attention(q, q, q, is_causal=True),
        F.scaled_dot_product_attention(q, q, q, q[..., :3].tanh(), scale=0.3),
        F.scaled_dot_product_attention(q, q, q, torch.eye(3, dtype=torch.bool)),
        F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True),
    ),
}
SHAPES = {"images": (2, 4, 6, 8)}
GROUPS = {
    "elementwise": ELEMENTWISE,
    "moving": MOVING,
    "sums": SUMS,
    "images": IMAGES,
    "products": PRODUCTS,
}
