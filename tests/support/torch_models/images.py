"""Models from images to images, boxes, masks or values."""

from typing import Any

import torch
from torch import nn

from tests.support.torch_models.blocks import Join, Residual, conv

F = nn.functional


class UNet(nn.Module):
    """Skips, and by turns transposed convolutions and bilinear upsampling."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        sizes = [width << at for at in range(depth + 1)]
        pairs = [*zip([3, *sizes], sizes, strict=False)]
        self.down = nn.ModuleList(nn.Sequential(conv(c, k), conv(k, k)) for c, k in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * c, c, 2, 2) if at % 2 else nn.Conv2d(2 * c, c, 1)
            for at, c in enumerate(sizes[:-1])
        )
        self.merge = nn.ModuleList(nn.Sequential(conv(2 * c, c), conv(c, c)) for c in sizes[:-1])
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        skips = list[Any]()
        for at, body in enumerate(self.down):
            x = body(F.max_pool2d(x, 2) if at else x)
            skips.append(x)
        for skip, up, merge in [*zip(skips, self.up, self.merge, strict=False)][::-1]:
            x = up(x)
            if x.shape[2:] != skip.shape[2:]:
                x = F.interpolate(x, skip.shape[2:], mode="bilinear", align_corners=False)
            x = merge(torch.cat([skip, x], 1))
        return self.last(x)


class DiffusionUNet(nn.Module):
    """Residuals with group norm and SiLU, to which a time is added; attention in the middle."""

    def __init__(self, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        wide = 2 * width
        self.first, self.last = nn.Conv2d(channels, width, 3, 1, 1), nn.Conv2d(width, channels, 1)
        self.time = nn.Sequential(nn.Linear(16, wide), nn.SiLU(), nn.Linear(wide, wide))
        self.down, self.up = nn.Conv2d(width, wide, 3, 2, 1), nn.Conv2d(wide, width, 3, 1, 1)
        self.blocks = nn.ModuleList(self._block(c) for c in (width, wide, wide, width))
        self.norm, self.gates = nn.GroupNorm(8, wide), nn.Conv2d(wide, 3 * wide, 1)

    @staticmethod
    def _block(c: int) -> Any:
        body = [part for _ in range(2) for part in (nn.GroupNorm(8, c), nn.SiLU(),
                                                    nn.Conv2d(c, c, 3, 1, 1))]  # fmt: skip
        return Residual(nn.Sequential(*body))

    def forward(self, x: Any, t: Any) -> Any:
        rates = torch.exp(torch.arange(8) * -0.7)
        waves = torch.cat([torch.sin(t[:, None] * rates), torch.cos(t[:, None] * rates)], 1)
        a = self.blocks[0](self.first(x))
        b = self.blocks[1](self.down(a)) + self.time(waves)[:, :, None, None]
        n, c, h, w = b.shape
        q, k, v = self.gates(self.norm(b)).view(n, 3, c, h * w).transpose(2, 3).unbind(1)
        b = b + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, c, h, w)
        wide = F.interpolate(self.blocks[2](b), scale_factor=2.0)
        return self.last(self.blocks[3](self.up(wide) + a))


class DeepLabHead(nn.Module):
    """Dilated convolutions and the whole image's mean, side by side, then upsampled."""

    def __init__(self, width: int = 64, classes: int = 21) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, width, 3, 2), conv(width, 2 * width, 3, 2))
        rates = [conv(2 * width, width, 3, dilation=rate) for rate in (6, 12, 18)]
        self.rates = Join(conv(2 * width, width, 1), *rates)
        self.pool, self.join = nn.Conv2d(2 * width, width, 1), conv(5 * width, width, 1)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        mean = F.relu(self.pool(y.mean((2, 3), keepdim=True))).expand(-1, -1, *y.shape[2:])
        y = self.last(self.join(torch.cat([self.rates(y), mean], 1)))
        return F.interpolate(y, x.shape[2:], mode="bilinear", align_corners=False)


class FeaturePyramid(nn.Module):
    """An FPN's neck over three levels, whose outputs have names."""

    def __init__(self, width: int = 64, out: int = 256) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        pairs = zip((3, *sizes), sizes, strict=False)
        self.down = nn.ModuleList(conv(c, k, 3, 2) for c, k in pairs)
        self.side = nn.ModuleList(nn.Conv2d(k, out, 1) for k in sizes)
        self.out = nn.ModuleList(nn.Conv2d(out, out, 3, 1, 1) for _ in sizes)

    def forward(self, x: Any) -> Any:
        levels, above, made = list[Any](), None, dict[str, Any]()
        for body in self.down:
            x = body(x)
            levels.append(x)
        for at in (2, 1, 0):
            side = self.side[at](levels[at])
            above = side if above is None else side + F.interpolate(above, side.shape[2:])
            made[f"p{at + 3}"] = self.out[at](above)
        return made


class YoloHead(nn.Module):
    """SiLU, spatial pyramid pooling, and boxes decoded from a grid."""

    def __init__(self, width: int = 64, classes: int = 80) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, width, 3, 2, nn.SiLU), conv(width, width, 3, 2, nn.SiLU))
        self.join = conv(4 * width, 2 * width, 1, act=nn.SiLU)
        self.last = nn.Conv2d(2 * width, 3 * (5 + classes), 1)
        self.register_buffer("sizes", torch.rand(3, 1, 1, 2))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        pools = [y]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        y = self.last(self.join(torch.cat(pools, 1)))
        n, _, h, w = y.shape
        y = y.view(n, 3, -1, h, w).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([columns, rows], -1).to(y.dtype)
        places, sizes, rest = y.split([2, 2, y.shape[-1] - 4], -1)
        boxes = torch.cat([(places * 2 + grid) * 4, (sizes * 2) ** 2 * self.sizes, rest], -1)
        return boxes.flatten(1, 3)


class CenterNetHead(nn.Module):
    """Transposed convolutions, then maps of centres, of which the local maxima stay."""

    def __init__(self, width: int = 64, classes: int = 20) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(3, width, 7, 4), conv(width, 4 * width, 3, 2))
        up = [nn.ConvTranspose2d(4 * width, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width)]
        self.up = nn.Sequential(*up, nn.ReLU(inplace=True))
        self.heads = nn.ModuleDict({
            name: nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                                nn.Conv2d(width, k, 1))
            for name, k in (("centres", classes), ("sizes", 2), ("offsets", 2))
        })  # fmt: skip

    def forward(self, x: Any) -> Any:
        y = self.up(self.down(x))
        maps = {name: head(y) for name, head in self.heads.items()}
        heat = maps["centres"].sigmoid()
        return {**maps, "centres": heat * (F.max_pool2d(heat, 3, 1, 1) == heat)}


class Fuse(nn.Module):
    """HRNet's: two sizes, each a sum of both."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem, self.down = conv(3, width, 3, 2), conv(width, 2 * width, 3, 2)
        self.wide, self.deep = (
            Residual(nn.Sequential(conv(k, k), conv(k, k, act=None)), None, nn.ReLU())
            for k in (width, 2 * width)
        )
        self.up = conv(2 * width, width, 1, act=None)
        self.across = conv(width, 2 * width, 3, 2, None)

    def forward(self, x: Any) -> Any:
        a = self.stem(x)
        a, b = self.wide(a), self.deep(self.down(a))
        up = F.interpolate(self.up(b), a.shape[2:], mode="nearest")
        return F.relu(a + up), F.relu(b + self.across(a))


def srcnn(width: int = 64) -> Any:
    layers = [nn.Conv2d(1, width, 9, padding=4), nn.ReLU(), nn.Conv2d(width, width // 2, 1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(width // 2, 1, 5, padding=2))


def edsr(width: int = 64, depth: int = 16) -> Any:
    """Residuals without norms, pixels shuffled at the end."""
    blocks = [
        Residual(nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(),
                               nn.Conv2d(width, width, 3, 1, 1)))
        for _ in range(depth)
    ]  # fmt: skip
    tail = [nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, 1, 1)]
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *blocks, *tail)


def dcgan(width: int = 64, noise: int = 100) -> Any:
    layers, c = [nn.Unflatten(1, (noise, 1, 1))], noise
    for at in range(4):
        k = 8 * width >> at
        layers += [nn.ConvTranspose2d(c, k, 4, 2 if at else 1, 1 if at else 0, bias=False),
                   nn.BatchNorm2d(k), nn.ReLU(True)]  # fmt: skip
        c = k
    return nn.Sequential(*layers, nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh())


def style_transfer(width: int = 64, depth: int = 6) -> Any:
    """A generator with instance norms and mirrored edges."""

    def mirrored(c: int, k: int, size: int, stride: int = 1) -> list[Any]:
        pad = nn.ReflectionPad2d(size // 2)
        return [pad, nn.Conv2d(c, k, size, stride), nn.InstanceNorm2d(k, affine=True)]

    layers = [*mirrored(3, width, 7), nn.ReLU(), *mirrored(width, 2 * width, 3, 2), nn.ReLU()]
    c = 2 * width
    for _ in range(depth):
        layers.append(Residual(nn.Sequential(*mirrored(c, c, 3), nn.ReLU(), *mirrored(c, c, 3))))
    layers += [nn.Upsample(scale_factor=2), *mirrored(c, width, 3), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.ReplicationPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def autoencoder(width: int = 32) -> Any:
    up = [nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.ReLU(),
          nn.ConvTranspose2d(width, 3, 2, 2)]  # fmt: skip
    return nn.Sequential(conv(3, width, 3, 2), conv(width, 2 * width, 3, 2), *up, nn.Sigmoid())


class VAE(nn.Module):
    """In inference: the mean, the variance and the image of the mean."""

    def __init__(self, width: int = 32, size: int = 32, latent: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, width, 3, 2, nn.ELU), conv(width, width, 3, 2, nn.ELU))
        self.shape, count = (-1, width, size // 4, size // 4), width * (size // 4) ** 2
        self.mean, self.spread = nn.Linear(count, latent), nn.Linear(count, latent)
        self.back = nn.Linear(latent, count)
        self.up = nn.Sequential(nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ELU(),
                                nn.ConvTranspose2d(width, 3, 4, 2, 1))  # fmt: skip

    def forward(self, x: Any) -> Any:
        y = self.body(x).flatten(1)
        mean, spread = self.mean(y), self.spread(y)
        return torch.sigmoid(self.up(self.back(mean).view(self.shape))), mean, spread.exp()


class Siamese(nn.Module):
    """How far apart two images are, by one body."""

    def __init__(self, width: int = 64, out: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, width, 5, 2), nn.MaxPool2d(2), conv(width, width),
                                  nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(width, out)
        )  # fmt: skip

    def forward(self, x: Any, y: Any) -> Any:
        a, b = F.normalize(self.body(x), dim=1), F.normalize(self.body(y), dim=1)
        return F.pairwise_distance(a, b), F.cosine_similarity(a, b)


def volumes(width: int = 16, classes: int = 10) -> Any:
    """A 3-D CNN of short films."""
    layers, c = list[Any](), 3
    for k in (width, 2 * width, 4 * width):
        layers += [nn.Conv3d(c, k, 3, padding=1), nn.BatchNorm3d(k), nn.ReLU(), nn.MaxPool3d(2)]
        c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(c, classes))


class DuelingDQN(nn.Module):
    """What each of several actions is worth, from four frames of a game."""

    def __init__(self, width: int = 32, size: int = 84, inner: int = 512, actions: int = 6) -> None:
        super().__init__()
        c, wide = width, 2 * width
        self.body = nn.Sequential(nn.Conv2d(4, c, 8, 4), nn.ReLU(), nn.Conv2d(c, wide, 4, 2),
                                  nn.ReLU(), nn.Conv2d(wide, wide, 3), nn.ReLU(), nn.Flatten()
        )  # fmt: skip
        count = wide * (((size - 8) // 4 + 1 - 4) // 2 - 1) ** 2
        self.value = nn.Sequential(nn.Linear(count, inner), nn.ReLU(), nn.Linear(inner, 1))
        self.gain = nn.Sequential(nn.Linear(count, inner), nn.ReLU(), nn.Linear(inner, actions))

    def forward(self, frames: Any) -> Any:
        y = self.body(frames / 255)
        gain = self.gain(y)
        worth = self.value(y) + gain - gain.mean(1, keepdim=True)
        return worth, worth.argmax(1)


class STN(nn.Module):
    """A spatial transformer: the image turned and scaled as a small network says."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.place = nn.Sequential(conv(3, width, 7, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                                   nn.Linear(4 * width, 6))  # fmt: skip
        self.body = nn.Sequential(conv(3, width, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                  nn.Linear(width, classes))  # fmt: skip

    def forward(self, x: Any) -> Any:
        theta = self.place(x).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.body(F.grid_sample(x, grid, align_corners=False))
