"""Layers of attention that PyTorch computes by one operator, as operators that networks have.

Where nothing learns, ``nn.TransformerEncoderLayer`` calls ``torch._transformer_encoder_layer_fwd``,
which ``torch.compile`` hands on as it is.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional

_LAYER: Final = torch._transformer_encoder_layer_fwd
_OPERANDS: Final = 18  # before a mask and its kind
_KEYS, _KINDS = 1, (0, 1, 2)  # of lengths by lengths, of a batch's keys, of all of its heads


def with_plain_layers(graph: Any) -> None:
    """Let such layers in a graph of TorchDynamo's be computed by :func:`encoder_layer`.

    Not under autocast, which gives the one operator other types than its parts.
    """
    if torch.is_autocast_enabled("cpu"):
        return
    for node in graph.graph.nodes:
        if node.target is not _LAYER or len(node.args) < _OPERANDS or node.kwargs:
            continue
        operands = [*node.args, None, None]
        mask, kind = operands[_OPERANDS : _OPERANDS + 2]
        if mask is None or kind in _KINDS:
            node.target, node.args = encoder_layer, (mask, kind, *node.args[:_OPERANDS])
    graph.recompile()


def encoder_layer(
    mask: Any, kind: int | None, x: Any, _channels: int, heads: int, qkv_weight: Any,
    qkv_bias: Any, out_weight: Any, out_bias: Any, gelu: bool, norm_first: bool, epsilon: float,
    *others: Any,
) -> Any:  # fmt: skip
    """Self-attention and two linear layers of x (batch, length, channels), normalised.

    The arguments are those of ``aten::_transformer_encoder_layer_fwd``, its mask first: what is not
    0 there takes no part.
    """
    if mask is not None:
        mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask.to(torch.bool), -torch.inf)
        mask = mask[:, None, None] if kind == _KEYS else mask
    first, second, (up, up_bias, down, down_bias) = others[:2], others[2:4], others[4:]

    def norm(values: Any, weights: Any) -> Any:
        return functional.layer_norm(values, values.shape[-1:], weights[0], weights[1], epsilon)

    def attend(values: Any) -> Any:
        parts = functional.linear(values, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return functional.linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed(values: Any) -> Any:
        inner = functional.linear(values, up, up_bias)
        active = functional.gelu(inner) if gelu else functional.relu(inner)
        return functional.linear(active, down, down_bias)

    if norm_first:
        x = x + attend(norm(x, first))
        return x + feed(norm(x, second))
    x = norm(x + attend(x), first)
    return norm(x + feed(x), second)
