"""What many models are made of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

F = nn.functional


def conv(
    c: int, k: int, size: int = 3, stride: int = 1, act: Any = nn.ReLU, *, dilation: int = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convolution that keeps the size, batch norm, activation."""
    padding = dilation * (size // 2)
    body = nn.Conv2d(c, k, size, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(body, nn.BatchNorm2d(k), *([act()] if act else []))


class Residual(nn.Module):
    """``activation(x + body(x))``, or with a shortcut."""

    def __init__(self, body: Any, shortcut: Any = None, activation: Any = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.activation(self.body(x) + self.shortcut(x))


class Join(nn.Module):
    """What branches make, one after the other in the channels."""

    def __init__(self, *branches: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        return torch.cat([branch(x) for branch in self.branches], 1)


class SqueezeExcite(nn.Module):
    """Channels scaled by what their means say."""

    def __init__(self, c: int, inner: int, act: Any = F.relu, gate: Any = torch.sigmoid) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(c, inner, 1), nn.Conv2d(inner, c, 1)
        self.act, self.gate = act, gate

    def forward(self, x: Any) -> Any:
        scale = self.narrow(F.adaptive_avg_pool2d(x, 1))
        return x * self.gate(self.wide(self.act(scale)))


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of images."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def classifier(c: int, classes: int, *before: Any) -> Sequence[Any]:
    """Means of the channels, then a linear layer."""
    return (nn.AdaptiveAvgPool2d(1), nn.Flatten(), *before, nn.Linear(c, classes))


class Attention(nn.Module):
    """Of all places to all, by heads; ``bias`` is added to the scores, or a mask of them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.gates, self.out = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Any, bias: Any = None, causal: bool = False) -> Any:
        n, t, c = x.shape
        q, k, v = self.gates(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


def encoder(width: int, heads: int, depth: int, *, norm_first: bool = True) -> Any:
    """Layers of a transformer, as PyTorch has them."""
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.1, F.gelu, batch_first=True, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
