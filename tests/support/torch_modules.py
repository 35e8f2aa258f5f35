"""Small models in plain torch, with random weights: one of each family that PyTorch users have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


def conv(c: int, k: int, size: int = 3, stride: int = 1, act: Any = nn.ReLU, **words: Any) -> Any:
    """Convolution, batch norm, activation."""
    parts = [nn.Conv2d(c, k, size, stride, size // 2, bias=False, **words), nn.BatchNorm2d(k)]
    return nn.Sequential(*parts, act()) if act else nn.Sequential(*parts)


class Residual(nn.Module):
    """``activation(x + body(x))``, or with a shortcut."""

    def __init__(self, body: Any, shortcut: Any = None, activation: Any = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.activation(self.body(x) + self.shortcut(x))


def resnet() -> Any:
    """ResNet-18 with an eighth of the channels."""
    layers: list[Any] = [conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = 8
    for k, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        short = conv(c, k, 1, stride, None) if stride > 1 else None
        body = nn.Sequential(conv(c, k, 3, stride), conv(k, k, act=None))
        layers.append(Residual(body, short, nn.ReLU(inplace=True)))
        c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


class SqueezeExcite(nn.Module):
    """Channels scaled by what their means say."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, c, 1)

    def forward(self, x: Any) -> Any:
        scale = F.relu(self.narrow(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.wide(scale))


def mobilenet() -> Any:
    """Inverted residuals of MobileNetV2 and V3."""
    blocks: list[Any] = [conv(3, 16, 3, 2, nn.Hardswish)]
    for act, extra in ((nn.ReLU6, nn.Identity()), (nn.Hardswish, SqueezeExcite(32))):
        body = nn.Sequential(
            conv(16, 32, 1, act=act),
            conv(32, 32, act=act, groups=32),
            extra,
            conv(32, 16, 1, act=None),
        )
        blocks.append(Residual(body))
    return nn.Sequential(
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(16, 9)
    )


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of images."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> Any:
    """Depthwise 7x7, layer norm, two linear layers as 1x1 convolutions."""
    body = [
        nn.Conv2d(16, 16, 7, padding=3, groups=16),
        LayerNorm2d(16),
        nn.Conv2d(16, 64, 1),
        nn.GELU(),
        nn.Conv2d(64, 16, 1),
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), LayerNorm2d(16), Residual(nn.Sequential(*body)))


class UNet(nn.Module):
    """Two levels, with skips and both kinds of upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(3, 8), conv(8, 16)
        self.deep, self.up = conv(16, 32), nn.ConvTranspose2d(32, 16, 2, 2)
        self.third, self.last = conv(32, 16), conv(24, 8)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        c = self.up(self.deep(F.max_pool2d(b, 2)))
        d = self.third(torch.cat([F.interpolate(c, b.shape[2:]), b], 1))
        wide = F.interpolate(d, a.shape[2:], mode="bilinear", align_corners=False)
        return self.last(torch.cat([wide, a], 1))


class DenseBlock(nn.Module):
    """Every layer reads what all before it made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 8, 3, padding=1))
            for c in (8, 16, 24)
        )
        self.first = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, x: Any) -> Any:
        parts = [self.first(x)]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)))
        return F.avg_pool2d(torch.cat(parts, 1), 2)


class Transformer(nn.Module):
    """A ViT: patches, a class token, positions, two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 13, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(x), -1, -1), y], 1)
        return self.head(self.layers(y + self.places[:, : y.shape[1]])[:, 0])


class Bert(nn.Module):
    """Embeddings of words and places, masked attention, a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(20, 32)
        self.norm, self.query = nn.LayerNorm(32), nn.Linear(32, 96)
        self.out, self.pool = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, words: Any) -> Any:
        n, t = words.shape
        x = self.norm(self.words(words) + self.places(torch.arange(t)))
        q, k, v = self.query(x).view(n, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mask = (words > 0)[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(n, t, 32)
        y = x + self.out(y)
        return y, torch.tanh(self.pool(y[:, 0]))


class Tagger(nn.Module):
    """A bidirectional LSTM over embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 16, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(32, 7)

    def forward(self, words: Any) -> Any:
        return F.log_softmax(self.tags(self.lstm(self.words(words))[0]), -1)


def autoencoder() -> Any:
    up = [nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2)]
    return nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2), *up, nn.Sigmoid())


def super_resolution() -> Any:
    """SRCNN, its pixels shuffled at the end."""
    layers = [nn.Conv2d(3, 16, 9, padding=4), nn.ReLU(), nn.Conv2d(16, 12, 5, padding=2)]
    return nn.Sequential(*layers, nn.PixelShuffle(2))


class WaveNet(nn.Module):
    """Gated convolutions of growing dilation over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 4, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**at) for at in range(3))

    def forward(self, x: Any) -> Any:
        y = self.first(x[:, :, 0])
        for gate in self.gates:
            a, b = gate(F.pad(y, (gate.dilation[0], 0))).chunk(2, 1)
            y = y + torch.tanh(a) * torch.sigmoid(b)
        return self.last(F.relu(y))


def generator() -> Any:
    """A GAN's, with instance norm and mirrored edges."""
    body = [nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8), nn.LeakyReLU(0.2)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1),
        Residual(nn.Sequential(*body)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 3, 3, 1, 1),
        nn.Tanh(),
    )


class Windows(nn.Module):
    """A block of Swin: shifted windows, each with attention and a bias of places."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16)
        self.query, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.bias = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Any) -> Any:
        y = self.patches(x).permute(0, 2, 3, 1)
        n, h, w, c = y.shape
        z = torch.roll(self.norm(y), (-1, -1), (1, 2)).view(n, h // 2, 2, w // 2, 2, c)
        z = z.transpose(2, 3).reshape(-1, 4, c)
        q, k, v = self.query(z).view(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        shares = ((q @ k.mT) * (c // 2) ** -0.5 + self.bias).softmax(-1)
        z = self.out((shares @ v).transpose(1, 2).reshape(-1, 4, c))
        z = z.view(n, h // 2, w // 2, 2, 2, c).transpose(2, 3).reshape(n, h, w, c)
        return y + torch.roll(z, (1, 1), (1, 2))


def detector() -> Any:
    """A head as YOLO's: SiLU, spatial pyramid pooling."""

    class Pyramid(nn.Module):
        def forward(self, x: Any) -> Any:
            pools = [F.max_pool2d(x, size, 1, size // 2) for size in (3, 5)]
            return torch.cat([x, *pools], 1)

    return nn.Sequential(
        conv(3, 8, 3, 2, nn.SiLU),
        Pyramid(),
        conv(24, 16, 1, 1, nn.SiLU),
        nn.Conv2d(16, 18, 1),
        nn.Flatten(2),
    )


MODULES: Mapping[str, Callable[[], Any]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "unet": UNet,
    "densenet": DenseBlock,
    "vit": Transformer,
    "bert": Bert,
    "tagger": Tagger,
    "autoencoder": autoencoder,
    "srcnn": super_resolution,
    "wavenet": WaveNet,
    "generator": generator,
    "swin": Windows,
    "detector": detector,
}
TEXTS = ("bert", "tagger")


def module_of(name: str) -> Any:
    """In inference; batch norms have statistics as after training."""
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    return module


def inputs_of(name: str, batch: int = 2, size: tuple[int, int] = (24, 32)) -> tuple[Any, ...]:
    torch.manual_seed(1)
    if name in TEXTS:
        words = torch.randint(1, 50, (batch, size[0] // 2))
        words[0, 7:] = 0
        return (words,)
    return (torch.randn(batch, 3, *size),)
