"""Models that mix places by attention or by products."""

from typing import Any

import torch
from torch import nn

from tests.support.torch_models.blocks import Attention, Residual, encoder

F = nn.functional


class ViT(nn.Module):
    """ViT-Ti: patches, a class token, places."""

    def __init__(
        self, width: int = 192, heads: int = 3, depth: int = 12, patch: int = 16, size: int = 224,
        classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.layers = encoder(width, heads, depth)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1)
        return self.head(self.norm(self.layers(y + self.places))[:, 0])


class SwinBlock(nn.Module):
    """Shifted windows, each with attention, a bias of places and a mask at the seams."""

    def __init__(self, width: int = 96, heads: int = 3, window: int = 7, size: int = 56) -> None:
        super().__init__()
        self.window, count = window, (size // window) ** 2
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.bias = nn.Parameter(torch.randn(1, heads, window**2, window**2))
        mask = torch.rand(count, 1, window**2, window**2) > 0.5
        self.register_buffer("mask", mask * -100.0)
        wide = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()]
        self.mlp = Residual(nn.Sequential(*wide, nn.Linear(4 * width, width)))

    def forward(self, x: Any) -> Any:
        y = self.patches(x).permute(0, 2, 3, 1)
        (n, h, w, c), s = y.shape, self.window
        z = torch.roll(self.norm(y), (-s // 2, -s // 2), (1, 2)).view(n, h // s, s, w // s, s, c)
        z = z.transpose(2, 3).reshape(-1, s * s, c)
        z = self.attention(z, self.bias + self.mask.repeat(n, 1, 1, 1))
        z = z.view(n, h // s, w // s, s, s, c).transpose(2, 3).reshape(n, h, w, c)
        return self.mlp(y + torch.roll(z, (s // 2, s // 2), (1, 2)))


class Bert(nn.Module):
    """BERT-mini: words, places, masked attention, a pooler."""

    def __init__(
        self, width: int = 256, heads: int = 4, depth: int = 4, words: int = 30522, most: int = 512
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, 0), nn.Embedding(most, width)
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, width)
        self.layers = encoder(width, heads, depth, norm_first=False)

    def forward(self, words: Any) -> Any:
        x = self.norm(self.words(words) + self.places(torch.arange(words.shape[1])))
        y = self.layers(x, src_key_padding_mask=words == 0)
        return y, torch.tanh(self.pool(y[:, 0]))


class Whisper(nn.Module):
    """Its encoder: two convolutions over time, waves as places, a transformer."""

    def __init__(
        self, width: int = 384, heads: int = 6, depth: int = 4, mels: int = 80, length: int = 1500
    ) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, 2, 1)
        self.register_buffer("places", torch.randn(length, width))
        self.layers, self.norm = encoder(width, heads, depth), nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        y = F.gelu(self.second(F.gelu(self.first(x)))).permute(0, 2, 1)
        return self.norm(self.layers(y + self.places))


class Llama(nn.Module):
    """Blocks with RMS norm, turned places, heads that share keys, and SwiGLU."""

    def __init__(
        self, width: int = 256, heads: int = 8, shared: int = 2, depth: int = 2, words: int = 1000
    ) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        inner, keys = 8 * width // 3, self.size * (heads // shared)
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "before": nn.RMSNorm(width), "after": nn.RMSNorm(width),
                **{name: nn.Linear(width, k, bias=False)
                   for name, k in (("q", width), ("k", keys), ("v", keys), ("gate", inner),
                                   ("up", inner))},
                "out": nn.Linear(width, width, bias=False),
                "down": nn.Linear(inner, width, bias=False),
            }) for _ in range(depth)
        )  # fmt: skip

    def _turned(self, x: Any) -> Any:
        rates = 10000 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(x.shape[2]), rates).repeat(1, 2)
        a, b = x.chunk(2, -1)
        return x * angles.cos().to(x.dtype) + torch.cat([-b, a], -1) * angles.sin().to(x.dtype)

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        n, t, c = x.shape
        for layer in self.layers:
            y = layer["before"](x)
            q, k, v = (layer[name](y).view(n, t, -1, self.size).transpose(1, 2) for name in "qkv")
            q, k = self._turned(q), self._turned(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + layer["out"](y.transpose(1, 2).reshape(n, t, c))
            y = layer["after"](x)
            x = x + layer["down"](F.silu(layer["gate"](y)) * layer["up"](y))
        return F.linear(self.norm(x), self.words.weight)


class T5(nn.Module):
    """Its encoder: no scale, a bias by how far places are apart, in buckets; ReLU."""

    def __init__(self, width: int = 256, heads: int = 8, depth: int = 2, words: int = 1000) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(words, width)
        self.near = nn.Embedding(32, heads)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.RMSNorm(width), nn.Linear(width, 3 * width, bias=False),
                           nn.Linear(width, width, bias=False), nn.RMSNorm(width),
                           nn.Linear(width, 4 * width, bias=False),
                           nn.Linear(4 * width, width, bias=False)])
            for _ in range(depth)
        )  # fmt: skip

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        n, t, c = x.shape
        apart = torch.arange(t)[None] - torch.arange(t)[:, None]
        far = 8 + (torch.log(apart.abs().clamp(min=1) / 8) / 2.77 * 8).long()
        bucket = (apart > 0) * 16 + torch.where(apart.abs() < 8, apart.abs(), far.clamp(max=15))
        bias = self.near(bucket).permute(2, 0, 1)[None]
        for norm, gates, out, after, wide, narrow in self.layers:
            q, k, v = gates(norm(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = torch.softmax(q @ k.transpose(2, 3) + bias, -1) @ v
            x = x + out(y.transpose(1, 2).reshape(n, t, c))
            x = x + narrow(F.relu(wide(after(x))))
        return x


class Across(nn.Module):
    """An MLP along the other axis."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x.transpose(1, 2)).transpose(1, 2)


def mixer(width: int = 256, depth: int = 4, patch: int = 16, size: int = 224) -> Any:
    """MLP-Mixer: along places, then along channels."""

    def mlp(c: int, inner: int) -> Any:
        return nn.Sequential(nn.Linear(c, inner), nn.GELU(), nn.Linear(inner, c))

    count = (size // patch) ** 2
    layers = list[Any]()
    for _ in range(depth):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), Across(mlp(count, width // 2)))))
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), mlp(width, 4 * width))))
    first = [nn.Conv2d(3, width, patch, patch), nn.Flatten(2), Turn()]
    head = [Turn(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(*first, *layers, nn.LayerNorm(width), *head)


class Turn(nn.Module):
    """Channels last."""

    def forward(self, x: Any) -> Any:
        return x.transpose(1, 2)


class GatedMLP(nn.Module):
    """A block of gMLP: half of the channels gate the others, along places."""

    def __init__(self, width: int = 128, inner: int = 512, length: int = 64) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 2 * inner)
        self.gate, self.along = nn.LayerNorm(inner), nn.Conv1d(length, length, 1)
        self.narrow = nn.Linear(inner, width)

    def forward(self, x: Any) -> Any:
        a, b = F.gelu(self.wide(self.norm(x))).chunk(2, -1)
        return x + self.narrow(a * self.along(self.gate(b)))


class LinearAttention(nn.Module):
    """Products of keys and values first, places masked by how long each text is."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.gates = heads, nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any, lengths: Any) -> Any:
        n, t, c = x.shape
        mask = (torch.arange(t) < lengths[:, None])[:, :, None, None]
        q, k, v = self.gates(x).view(n, t, 3, self.heads, -1).unbind(2)
        q, k = F.elu(q) + 1, (F.elu(k) + 1).masked_fill(~mask, 0.0)
        sums = torch.einsum("nthd,nthe->nhde", k, v)
        size = torch.einsum("nthd,nhd->nth", q, k.sum(1))[..., None] + 1e-6
        return self.out((torch.einsum("nthd,nhde->nthe", q, sums) / size).reshape(n, t, c))


class CrossAttention(nn.Module):
    """``nn.MultiheadAttention`` from one list of places to another."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any, y: Any) -> Any:
        made, shares = self.attention(x, y, y)
        return self.norm(x + made), shares


class PointNet(nn.Module):
    """Points, each alike, then the largest of each feature; a transform of the points before."""

    def __init__(self, width: int = 64, classes: int = 40) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, width, 1), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
                                  nn.Flatten(), nn.Linear(width, 9))  # fmt: skip
        layers, c = list[Any](), 3
        for k in (width, 2 * width, 16 * width):
            layers += [nn.Conv1d(c, k, 1), nn.BatchNorm1d(k), nn.ReLU()]
            c = k
        self.body, self.head = nn.Sequential(*layers), nn.Linear(c, classes)

    def forward(self, x: Any) -> Any:
        turned = torch.bmm(self.turn(x).view(-1, 3, 3) + torch.eye(3), x)
        return F.log_softmax(self.head(self.body(turned).amax(2)), 1)
