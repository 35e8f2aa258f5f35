"""Models that classify images; their defaults are the sizes of the papers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tests.support.torch_models.blocks import (
    Join,
    LayerNorm2d,
    Residual,
    SqueezeExcite,
    classifier,
    conv,
)

F = nn.functional


def resnet18(width: int = 64, classes: int = 1000) -> Any:
    layers, c = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)], width
    for at in range(8):
        k, stride = width << at // 2, 2 if at in (2, 4, 6) else 1
        short = conv(c, k, 1, stride, None) if stride > 1 else None
        body = nn.Sequential(conv(c, k, 3, stride), conv(k, k, act=None))
        layers.append(Residual(body, short, nn.ReLU(inplace=True)))
        c = k
    return nn.Sequential(*layers, *classifier(c, classes))


def bottlenecks(
    width: int = 64, depths: Sequence[int] = (3, 4, 6, 3), classes: int = 1000, group: int = 0,
    inner: int = 1, squeeze: bool = False,
) -> Any:  # fmt: skip
    """ResNet-50; with groups of so many channels ResNeXt, with ``squeeze`` SE-ResNet."""
    layers, c = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)], width
    for stage, depth in enumerate(depths):
        for at in range(depth):
            mid, k = inner * width << stage, 4 * width << stage
            stride = 2 if stage and at == 0 else 1
            short = conv(c, k, 1, stride, None) if at == 0 else None
            groups = mid // group if group else 1
            body = [conv(c, mid, 1), conv(mid, mid, 3, stride, groups=groups),
                    conv(mid, k, 1, act=None)]  # fmt: skip
            body += [SqueezeExcite(k, k // 16)] if squeeze else []
            layers.append(Residual(nn.Sequential(*body), short, nn.ReLU(inplace=True)))
            c = k
    return nn.Sequential(*layers, *classifier(c, classes))


def regnet(
    widths: Sequence[int] = (24, 56, 152, 368), depths: Sequence[int] = (1, 1, 4, 7),
    group: int = 8, classes: int = 1000,
) -> Any:  # fmt: skip
    """RegNetY-400MF's shape: bottlenecks without a bottle's neck, with squeeze and excitation."""
    layers, c = [conv(3, 32, 3, 2)], 32
    for k, depth in zip(widths, depths, strict=True):
        for at in range(depth):
            stride = 2 if at == 0 else 1
            body = nn.Sequential(
                conv(c, k, 1), conv(k, k, 3, stride, groups=k // group), SqueezeExcite(k, c // 4),
                conv(k, k, 1, act=None),
            )  # fmt: skip
            short = conv(c, k, 1, stride, None) if stride > 1 or c != k else None
            layers.append(Residual(body, short, nn.ReLU()))
            c = k
    return nn.Sequential(*layers, *classifier(c, classes))


def inverted(c: int, k: int, wide: int, size: int, stride: int, act: Any, extra: Any = None) -> Any:
    """An inverted residual: wider, depthwise, narrower."""
    body = [conv(c, wide, 1, act=act)] if wide != c else []
    body += [conv(wide, wide, size, stride, act, groups=wide), *([extra] if extra else [])]
    body.append(conv(wide, k, 1, act=None))
    block = nn.Sequential(*body)
    return Residual(block) if stride == 1 and c == k else block


V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
      (6, 320, 1, 1))  # fmt: skip


def mobilenet_v2(
    rows: Sequence[Sequence[int]] = V2, first: int = 32, last: int = 1280, classes: int = 1000
) -> Any:
    layers, c = [conv(3, first, 3, 2, nn.ReLU6)], first
    for wide, k, depth, stride in rows:
        for at in range(depth):
            layers.append(inverted(c, k, c * wide, 3, 1 if at else stride, nn.ReLU6))
            c = k
    layers.append(conv(c, last, 1, act=nn.ReLU6))
    return nn.Sequential(*layers, *classifier(last, classes, nn.Dropout(0.2)))


# Size, columns between, columns, squeeze and excitation, Hardswish, stride: MobileNetV3-Large.
V3 = (
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2),
    (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1),
    (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
)  # fmt: skip


def mobilenet_v3(
    rows: Sequence[Sequence[int]] = V3, last: int = 960, head: int = 1280, classes: int = 1000
) -> Any:
    layers, c = [conv(3, 16, 3, 2, nn.Hardswish)], 16
    for size, wide, k, squeeze, hard, stride in rows:
        extra = SqueezeExcite(wide, wide // 4, gate=F.hardsigmoid) if squeeze else None
        act = nn.Hardswish if hard else nn.ReLU
        layers.append(inverted(c, k, wide, size, stride, act, extra))
        c = k
    layers.append(conv(c, last, 1, act=nn.Hardswish))
    middle = (nn.Linear(last, head), nn.Hardswish(), nn.Dropout(0.2))
    return nn.Sequential(*layers, *classifier(head, classes, *middle))


B0 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
      (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip


def efficientnet_b0(
    rows: Sequence[Sequence[int]] = B0, last: int = 1280, classes: int = 1000
) -> Any:
    layers, c = [conv(3, 32, 3, 2, nn.SiLU)], 32
    for wide, k, depth, stride, size in rows:
        for at in range(depth):
            extra = SqueezeExcite(c * wide, c // 4, F.silu)
            layers.append(inverted(c, k, c * wide, size, 1 if at else stride, nn.SiLU, extra))
            c = k
    layers.append(conv(c, last, 1, act=nn.SiLU))
    return nn.Sequential(*layers, *classifier(last, classes, nn.Dropout(0.2)))


def vgg16(width: int = 64, size: int = 224, inner: int = 4096, classes: int = 1000) -> Any:
    layers, c = list[Any](), 3
    for k, depth in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(c, k * width, 3, padding=1), nn.ReLU(inplace=True)]
            c = k * width
        layers.append(nn.MaxPool2d(2, 2))
    head = [nn.Flatten(), nn.Linear(c * (size // 32) ** 2, inner), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, *head, nn.Linear(inner, inner), nn.ReLU(), nn.Dropout(),
                         nn.Linear(inner, classes))  # fmt: skip


def alexnet(width: int = 64, inner: int = 4096, classes: int = 1000) -> Any:
    c, k = 3 * width, 4 * width
    return nn.Sequential(
        nn.Conv2d(3, width, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(width, c, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * c, k, 3, padding=1), nn.ReLU(),
        nn.Conv2d(k, k, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6),
        nn.Flatten(), nn.Dropout(), nn.Linear(36 * k, inner), nn.ReLU(), nn.Dropout(),
        nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, classes),
    )  # fmt: skip


def squeezenet(width: int = 16, classes: int = 1000) -> Any:
    layers, c = [nn.Conv2d(3, 4 * width, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)], 4
    for at, s in enumerate((1, 1, 2, 2, 3, 3, 4, 4)):
        if at in (2, 4):
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        wide = 4 * s * width
        one = nn.Sequential(nn.Conv2d(s * width, wide, 1), nn.ReLU())
        three = nn.Sequential(nn.Conv2d(s * width, wide, 3, padding=1), nn.ReLU())
        layers += [nn.Conv2d(c * width, s * width, 1), nn.ReLU(), Join(one, three)]
        c = 8 * s
    head = [nn.Dropout(), nn.Conv2d(c * width, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, *head, nn.Flatten())


class ShuffleUnit(nn.Module):
    """Half of the channels pass by; then all are shuffled."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.halves, half, own = stride == 1, k // 2, c // 2 if stride == 1 else c
        deep = conv(half, half, 3, stride, None, groups=half)
        self.body = nn.Sequential(conv(own, half, 1), deep, conv(half, half, 1))
        self.short = None if stride == 1 else nn.Sequential(
            conv(c, c, 3, stride, None, groups=c), conv(c, half, 1))  # fmt: skip

    def forward(self, x: Any) -> Any:
        a, b = x.chunk(2, 1) if self.halves else (self.short(x), x)
        y = torch.cat([a, self.body(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2(
    widths: Sequence[int] = (116, 232, 464), last: int = 1024, classes: int = 1000
) -> Any:
    layers, c = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)], 24
    for k, depth in zip(widths, (4, 8, 4), strict=True):
        for at in range(depth):
            layers.append(ShuffleUnit(c, k, 1 if at else 2))
            c = k
    return nn.Sequential(*layers, conv(c, last, 1), *classifier(last, classes))


# Columns of the four branches, and of what is before the second and the third.
INCEPTION = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def googlenet(rows: Sequence[Sequence[int]] = INCEPTION, classes: int = 1000) -> Any:
    layers = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), conv(64, 64, 1),
              conv(64, 192), nn.MaxPool2d(3, 2, ceil_mode=True)]  # fmt: skip
    c = 192
    for at, (one, before, three, narrow, five, pooled) in enumerate(rows):
        if at in (2, 7):
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        layers.append(Join(
            conv(c, one, 1), nn.Sequential(conv(c, before, 1), conv(before, three)),
            nn.Sequential(conv(c, narrow, 1), conv(narrow, five, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv(c, pooled, 1)),
        ))  # fmt: skip
        c = one + three + five + pooled
    return nn.Sequential(*layers, *classifier(c, classes, nn.Dropout()))


def xception(
    widths: Sequence[int] = (128, 256, 728), middle: int = 8, last: int = 1024,
    classes: int = 1000,
) -> Any:  # fmt: skip
    def separable(c: int, k: int) -> list[Any]:
        return [nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False), conv(c, k, 1, act=None)]

    layers, c = [conv(3, 32, 3, 2), conv(32, 64)], 64
    for k in (*widths, last):
        body = [*separable(c, k), nn.ReLU(), *separable(k, k), nn.MaxPool2d(3, 2, 1)]
        layers.append(Residual(nn.Sequential(*body), conv(c, k, 1, 2, None)))
        for _ in range(middle if k == widths[-1] else 0):
            body = [part for _ in range(3) for part in (nn.ReLU(), *separable(k, k))]
            layers.append(Residual(nn.Sequential(*body)))
        c = k
    return nn.Sequential(*layers, *classifier(c, classes))


def densenet121(
    growth: int = 32, depths: Sequence[int] = (6, 12, 24, 16), classes: int = 1000
) -> Any:
    def before(c: int, k: int, size: int) -> Any:
        return nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, k, size, 1, size // 2,
                                                                     bias=False))  # fmt: skip

    c = 2 * growth
    layers = [conv(3, c, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            body = nn.Sequential(before(c, 4 * growth, 1), before(4 * growth, growth, 3))
            layers.append(Join(nn.Identity(), body))
            c += growth
        if stage < len(depths) - 1:
            layers += [before(c, c // 2, 1), nn.AvgPool2d(2, 2)]
            c //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(c), nn.ReLU(), *classifier(c, classes))


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm, two linear layers, a scale a channel."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.mlp = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
        self.scale = nn.Parameter(torch.randn(c, 1, 1))

    def forward(self, x: Any) -> Any:
        y = self.mlp(self.norm(self.deep(x).permute(0, 2, 3, 1)))
        return x + self.scale * y.permute(0, 3, 1, 2)


def convnext_t(
    widths: Sequence[int] = (96, 192, 384, 768), depths: Sequence[int] = (3, 3, 9, 3),
    classes: int = 1000,
) -> Any:  # fmt: skip
    layers, c = [nn.Conv2d(3, widths[0], 4, 4), LayerNorm2d(widths[0])], widths[0]
    for k, depth in zip(widths, depths, strict=True):
        layers += [LayerNorm2d(c), nn.Conv2d(c, k, 2, 2)] if k != c else []
        layers += [ConvNeXtBlock(k) for _ in range(depth)]
        c = k
    pool = [nn.AdaptiveAvgPool2d(1), LayerNorm2d(c), nn.Flatten()]
    return nn.Sequential(*layers, *pool, nn.Linear(c, classes))


def convmixer(width: int = 256, depth: int = 8, size: int = 9, classes: int = 1000) -> Any:
    layers: list[Any] = [nn.Conv2d(3, width, 7, 7), nn.GELU(), nn.BatchNorm2d(width)]
    for _ in range(depth):
        deep = nn.Conv2d(width, width, size, groups=width, padding="same")
        layers.append(Residual(nn.Sequential(deep, nn.GELU(), nn.BatchNorm2d(width))))
        layers += [nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers, *classifier(width, classes))
