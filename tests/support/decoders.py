"""Small language models of random weights, whose keys and values lie in caches of fixed length."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, CHANNELS, HEADS, CAPACITY = 23, 32, 4, 24


class CachedAttention(nn.Module):
    """Causal attention over a cache that a call writes from a position on."""

    def __init__(self, channels: int, heads: int, capacity: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        shape = (1, heads, capacity, channels // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        mask = torch.arange(self.keys.shape[2]) <= places[:, None]
        y = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """Tokens and their places -> scores of the token behind each."""

    def __init__(
        self, vocabulary: int = VOCABULARY, channels: int = CHANNELS, heads: int = HEADS,
        capacity: int = CAPACITY, layers: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed, self.place = (
            nn.Embedding(vocabulary, channels),
            nn.Embedding(capacity, channels),
        )
        self.layers = nn.ModuleList(
            nn.ModuleList([
                nn.LayerNorm(channels), CachedAttention(channels, heads, capacity),
                nn.LayerNorm(channels), nn.Linear(channels, 2 * channels),
                nn.Linear(2 * channels, channels),
            ])
            for _ in range(layers)
        )  # fmt: skip
        self.head = nn.Linear(channels, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(places)
        for norm, attend, second, up, down in self.layers:
            x = x + attend(norm(x), places)
            x = x + down(functional.gelu(up(second(x))))
        return self.head(x)


def decoder(**sizes: int) -> Decoder:
    """Return a model of random weights, in inference."""
    torch.manual_seed(0)
    return Decoder(**sizes).eval()


def export(model: nn.Module, length: int | None = None, most: int = 8) -> Any:
    """Return its program: for so many tokens at a time, or for any number up to ``most``."""
    count = length or 2
    example = torch.zeros((1, count), dtype=torch.int64), torch.arange(count)
    size = None if length else torch.export.Dim("T", min=1, max=most)
    shapes = None if length else ({1: size}, {0: size})
    return torch.export.export(model, example, dynamic_shapes=shapes, strict=True)
