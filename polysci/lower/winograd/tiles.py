"""The convolutions that Winograd's algorithm takes, and tiles of their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.errors import UnsupportedError
from polysci.numerics.arrays import Doubles
from polysci.numerics.filtering import OUTPUTS, Filtering, filtering
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d
from polysci.ops.problem import Problem

Strides = tuple[int, ...]
Numbers = tuple[int, ...]
LEAST_OF_A_GROUP: Final = 8  # channels and filters
# The type in which transformed filters are kept, by the name of the transform.
STORED: Final[Mapping[str, str]] = MappingProxyType({"winograd": "f32", "winograd_f16": "f16"})


@dataclass(frozen=True, slots=True)
class OutputTile:
    """Outputs of a tile down and across, and their filtering along each axis."""

    down: Filtering
    across: Filtering

    def __str__(self) -> str:
        strides = dict.fromkeys(map(str, (self.down.stride, self.across.stride)))
        apart = "" if list(strides) == ["1"] else f", stride {'x'.join(strides)}"
        return f"F({self.outputs}, {self.down.r}x{self.across.r}{apart})"

    @property
    def outputs(self) -> str:
        return f"{self.down.m}x{self.across.m}"

    @property
    def points(self) -> int:
        """Products of a tile and a pair of channels."""
        return self.down.points * self.across.points

    @property
    def pixels(self) -> int:
        """Outputs of a tile."""
        return self.down.m * self.across.m

    @property
    def halo(self) -> float:
        """How often tiles read a pixel of x."""
        return self.points / (self.pixels * self.down.stride * self.across.stride)

    def count(self, conv: Conv2d) -> tuple[int, int]:
        """Return how many tiles an image has, down and across: those of all residues."""
        axes = zip(conv.pixels, (self.down, self.across), steps_of(conv), strict=True)
        # Rounding up twice is rounding up once.
        down, across = (step * -(-pixels // (step * axis.m)) for pixels, axis, step in axes)
        return down, across

    def tiles(self, conv: Conv2d) -> int:
        """Return how many tiles all images have."""
        down, across = self.count(conv)
        return conv.N * down * across


@dataclass(frozen=True, slots=True)
class Planes:
    """The planes of x that one plane of y sums, along the third axis of an image.

    A sum has ``taps`` of them, each ``step`` behind the one before; the first plane of y has the
    first one ``front`` ahead of x, and each further one ``stride`` behind that. There are ``size``
    planes of x and ``outputs`` of y.
    """

    taps: int = 1
    stride: int = 1
    step: int = 1
    front: int = 0
    size: int = 1
    outputs: int = 1

    def expand(self, images: Doubles) -> Doubles:
        """Return an image for each plane of y: (n, d, c, h, w) as (n * z, t * c, h, w)."""
        first = self.stride * np.arange(self.outputs)[:, None] - self.front
        at = first + self.step * np.arange(self.taps)
        real = (at >= 0) & (at < self.size)
        every = images[:, np.where(real, at, 0)] * real[:, :, None, None, None]
        n, z, t, c, h, w = every.shape
        return every.reshape(n * z, t * c, h, w)


def planes_of(problem: Problem) -> Planes:
    """Return the planes of a convolution over three axes; images of fewer have one."""
    if not isinstance(problem, Conv3d):
        return Planes()
    first = (problem.T, problem.stride[0], problem.dilation[0], problem.pad[0])
    return Planes(*first, problem.D, problem.Z)


def refusal(problem: Problem) -> str:
    """Return the field, its value and the rule that exclude a problem; empty for none."""
    if not isinstance(problem, Conv1d | Conv2d | Conv3d):
        return "it is no convolution: only those have a transform"
    taps = problem.taps[-2:]
    stride, dilation = problem.stride[-len(taps) :], problem.dilation[-len(taps) :]
    wrong = []
    if problem.dtype != "f32":
        wrong.append(f"dtype={problem.dtype}: expected f32")
    if not set(stride) <= set(OUTPUTS):
        wrong.append(f"stride={problem.stride}: expected 1 or 2 along rows and columns")
    elif max(taps) == 1 or any(
        own not in OUTPUTS[step] for own, step in zip(taps, stride, strict=True)
    ):
        wrong.append(
            f"filter={problem.taps}: expected 1, 3, 5 or 7 taps along rows and columns, with a "
            "stride of 2 also 4 or 6, and not 1 along both"
        )
    axes = zip(taps, stride, dilation, strict=True)
    if any(own > 1 < step and apart > 1 for own, step, apart in axes):
        wrong.append(f"dilation={problem.dilation}: expected 1 along axes of stride 2")
    groups = problem.groups
    if groups > 1 and isinstance(problem, Conv3d):
        wrong.append(f"groups={groups} over three axes: expected 1")
    least = min(problem.C // groups, problem.K // groups)
    if groups > 1 and least < LEAST_OF_A_GROUP:
        wrong.append(
            f"groups={groups} of {problem.C // groups} channels and {problem.K // groups} filters: "
            f"expected {LEAST_OF_A_GROUP} or more of each"
        )
    return "; ".join(wrong)


def convolution(problem: Problem) -> Conv2d:
    """Return the problem over two axes.

    Images of one axis have one row. Of three axes each plane of y is an image, whose channels are
    those of all planes that it sums.

    Raises UnsupportedError for one without a Winograd transform.
    """
    if why := refusal(problem):
        raise UnsupportedError(f"{problem}: algorithm winograd: {why}")
    if isinstance(problem, Conv2d):
        return problem
    if isinstance(problem, Conv3d):
        (_, *pad), (_, *dilation), (_, *stride) = problem.pad, problem.dilation, problem.stride
        return Conv2d(
            N=problem.N * problem.Z, C=problem.T * problem.C, H=problem.H, W=problem.W, K=problem.K,
            R=problem.R, S=problem.S, stride=(stride[0], stride[1]), pad=(pad[0], pad[1]),
            dilation=(dilation[0], dilation[1]),
            P=problem.P, Q=problem.Q, layout=problem.layout, activation=problem.activation,
        )  # fmt: skip
    assert isinstance(problem, Conv1d)
    return Conv2d(
        N=problem.N, C=problem.C, H=1, W=problem.W, K=problem.K, R=1, S=problem.S,
        stride=(1, problem.stride[0]), pad=(0, problem.pad[0]), dilation=(1, problem.dilation[0]),
        groups=problem.groups, P=1, Q=problem.Q, layout=problem.layout,
        activation=problem.activation,
    )  # fmt: skip


def steps_of(conv: Conv2d) -> tuple[int, int]:
    """Return how far apart the pixels of a tile are, down and across.

    A dilated filter reads every step-th pixel: the others are images of their own.
    """
    down, across = (
        step if taps > 1 else 1 for step, taps in zip(conv.dilation, conv.taps, strict=True)
    )
    return down, across


def image_strides(strides: Strides) -> Strides:
    """Return the distances of images, channels, planes, rows and columns, from those of x or y."""
    images, channels, *axes = strides
    return (images, channels, *(0,) * (3 - len(axes)), *axes)


def numbers_of(tile: OutputTile) -> Numbers:
    """Return the numbers of the transform that has a tile."""
    outputs = [axis.m for axis in (tile.down, tile.across) if axis.r > 1]
    return tuple(outputs[:1] if len(set(outputs)) == 1 else outputs)


def tile_of(conv: Conv2d, numbers: Sequence[int]) -> OutputTile:
    """Return the tile of a transform: one number for all axes of more than one tap, or one each.

    Raises UnsupportedError for others.
    """
    axes = sum(taps > 1 for taps in conv.taps)
    own = iter(numbers if len(numbers) == axes else [*numbers] * axes)
    outputs = [next(own, 0) if taps > 1 else 1 for taps in conv.taps]
    rules = _outputs(conv)
    if len(numbers) not in (1, axes) or any(
        m not in among for m, among in zip(outputs, rules, strict=True)
    ):
        taps_of = dict(zip(conv.taps, rules, strict=True))
        told = [f"one of {among} for {taps} taps" for taps, among in taps_of.items() if taps > 1]
        each = ", or winograd(m,n) with one for each axis" if axes == 2 else ""
        raise UnsupportedError(f"expected winograd(m){each}; m is {' and '.join(told)}")
    return _tile(conv, outputs)


def _outputs(conv: Conv2d) -> list[tuple[int, ...]]:
    """Return the outputs that a tile may have along each axis."""
    return [OUTPUTS[step][taps] for step, taps in zip(conv.stride, conv.taps, strict=True)]


def _tile(conv: Conv2d, outputs: Sequence[int]) -> OutputTile:
    axes = zip(outputs, conv.taps, conv.stride, strict=True)
    return OutputTile(*(filtering(*axis) for axis in axes))


def tile_sizes(conv: Conv2d) -> list[OutputTile]:
    """Return the tiles that searches consider.

    Those of different outputs along the axes are among them where they leave fewer products, since
    less of them overhangs.
    """
    every = [_tile(conv, outputs) for outputs in product(*_outputs(conv))]
    alike = [tile for tile in every if len(numbers_of(tile)) == 1]
    least = min((tile.tiles(conv) * tile.points for tile in alike), default=0)
    mixed = [tile for tile in every if len(numbers_of(tile)) == 2]
    if alike:
        mixed = [tile for tile in mixed if tile.tiles(conv) * tile.points < least]
    return [*alike, *mixed]


def schedule_tile(conv: Conv2d, text: str, numbers: Sequence[int]) -> OutputTile:
    """Return the tile of a schedule's transform. Raises UnsupportedError with its ``text``."""
    try:
        return tile_of(conv, numbers)
    except UnsupportedError as error:
        raise UnsupportedError(f"{text}: {error}") from None
