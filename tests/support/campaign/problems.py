"""Random problems of every operator: small extents, mostly odd or beside a register tile's."""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.ops import problem_of
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d, Convolution
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.problem import Problem
from tests.support import nests

MOST_FLOPS = 3e6  # of one problem, which unoptimised code and NumPy compute in milliseconds
TINY = (1, 1, 2, 3, 4, 5, 6, 7)
# Around the columns and rows of register tiles: of 4, 8, 16 or 32 lanes, in up to four vectors.
EDGES = tuple(size + by for size in (8, 12, 14, 16, 24, 32, 48, 64) for by in (-1, 0, 1))
LARGE = (80, 96, 100, 127, 129, 257)
KINDS = {1: Conv1d, 2: Conv2d, 3: Conv3d}
DrawText = Callable[[Random, bool], str]  # whether elements are reals
AXES = {1: ("WSQ",), 2: ("HRP", "WSQ"), 3: ("DTZ", "HRP", "WSQ")}


def extent(random: Random) -> int:
    """Mostly tiny, often beside the extent of a register tile, sometimes larger."""
    return random.choice(random.choices((TINY, EDGES, LARGE), (6, 5, 1))[0])


def batch_of(random: Random) -> int:
    return random.choice((1, 1, 1, 2, 3, 5, 0))


def function(random: Random, real: bool) -> str:
    """That ends sums of reals, or none."""
    return random.choice((*("",) * 6, *ACTIVATIONS)) if real else ""


def convolution(random: Random, axes: int, activation: str) -> Convolution:
    """Any groups, strides, dilations and padding, also beyond the image or cropping it."""
    groups = random.choice((1, 1, 1, 2, 3, 4, 8, 17))
    per, filters = (extent(random) if groups < 4 else random.choice((1, 1, 2, 3, 4)) for _ in "ck")
    if random.random() < 0.2:  # depthwise
        groups, per, filters = extent(random), 1, random.choice((1, 1, 1, 2, 3))
    square = random.random() < 0.35  # as networks have them, and Winograd takes
    sizes: dict[str, int | None] = {}
    pads, strides, dilations = [], [], []
    for size, taps, out in AXES[axes]:
        filter_, stride, apart = (
            (3, 1, 1) if square
            else (random.choice((1, 1, 2, 3, 3, 5)), *random.choices((1, 1, 2, 3), k=2))
        )  # fmt: skip
        span = (filter_ - 1) * apart + 1
        pads.append(random.choice((0, 0, span // 2, random.randint(0, span))))
        image = random.choice((*TINY, 8, 9, 13, 15, 17, 18) if axes < 3 else TINY)
        sizes |= {size: max(image, span - 2 * pads[-1], 1), taps: filter_}
        sizes[out] = random.choice((None, None, None, random.randint(1, 9)))
        strides.append(stride)
        dilations.append(apart)
    return KINDS[axes](
        N=batch_of(random), C=groups * per, K=groups * filters, groups=groups,
        stride=tuple(strides), pad=tuple(pads), dilation=tuple(dilations), **sizes,
        activation=activation,
    )  # fmt: skip


def convolution_text(axes: int) -> DrawText:
    return lambda random, real: str(convolution(random, axes, function(random, real)))


def gradient(word: str) -> DrawText:
    """The words of a gradient of a convolution, or of a transposed one."""

    def draw(random: Random, real: bool) -> str:
        if random.random() < 0.15:
            return f"{word} {transposed(random, real).replace('mb0', '')}"
        forward = convolution(random, random.choice((1, 2, 2, 2, 3)), "")
        # Filters have no gradient without images: such loops are refused.
        return f"{word} {forward.with_(N=max(forward.N, int(word == 'bwd_w')))}"

    return draw


def transposed(random: Random, real: bool) -> str:
    groups = random.choice((1, 1, 1, 2, 3))
    strides, dilations = ([random.choice((1, 2, 2, 3)), random.choice((1, 1, 2, 3))] for _ in "sd")
    most = [max(pair) for pair in zip(strides, dilations, strict=True)]
    return str(
        ConvTranspose2d(
            N=batch_of(random), C=groups * extent(random), K=groups * extent(random),
            H=random.choice(TINY), W=random.choice((*TINY, 9, 14, 15)),
            R=random.choice((1, 2, 3, 4)), S=random.choice((1, 2, 3, 5)), stride=tuple(strides),
            pad=(random.choice((0, 0, 1, 2)), random.choice((0, 0, 1, 2))), groups=groups,
            output_padding=tuple(random.choice((0, random.randrange(size))) for size in most),
            dilation=tuple(dilations),
        )
    )  # fmt: skip


def matmul(random: Random, real: bool) -> str:
    """Either factor constant or none, any operand transposed, a batch or none, scaled or not."""
    return str(
        Matmul(
            extent(random), extent(random), extent(random),
            batch=random.choice((None, None, 1, 2, 3, 5, 7)),
            constant=random.choice((*("",) * real, "a", "a", "b", "b", "b")),
            transposed="".join(letter for letter in "abo" if random.random() < 0.4),
            alpha=random.choice((1.0, 1.0, 0.5, -2.0)) if real else 1.0,
            beta=random.choice((1.0, 1.0, 0.5, -1.0)) if real else 1.0,
            activation=function(random, real),
        )
    )  # fmt: skip


def linear(random: Random, real: bool) -> str:
    name = function(random, real)
    words = f"linear:{extent(random)}x{extent(random)}x{extent(random)}"
    return f"{words} act={name}" if name else words


def subscripts(random: Random, real: bool) -> str:
    """An einsum: up to three axes of the batch, rows, columns or sums of one or two letters."""
    lead = "bch"[: random.randint(0, 3)]
    m, n, k = (random.choice(pair) for pair in (("m", "mi"), ("n", "nj"), ("k", "kl")))
    operands = [
        lead + "".join(random.choice((pair, pair[::-1]))) for pair in ((m, k), (k, n), (m, n))
    ]
    sizes = {letter: random.choice((1, 2, 3)) for letter in lead}
    sizes |= {
        letter: extent(random) if len(part) == 1 else random.choice(TINY)
        for part in (m, n, k)
        for letter in part
    }
    words = " ".join(f"{letter}={size}" for letter, size in sizes.items())
    constant = random.choice((*("",) * real, " a=constant", " b=constant"))
    return f"mm:{operands[0]},{operands[1]}->{operands[2]} {words}{constant}"


def nest(random: Random, real: bool) -> str:
    """Affine loops: axes in any order, up to three of the batch, windows with guards, offsets."""
    if random.random() < 0.15:
        return str(nests.nest(random.choice([*nests.TEXTS])).with_(name=""))
    roles = {
        "batch": "tuv"[: random.choice((0, 0, 1, 2, 3))],
        "m": "ip"[: random.choice((0, 1, 1, 2))],
        "n": "j",
        "k": "kl"[: random.choice((0, 1, 1, 2))],
    }
    extents = {letter: random.choice(TINY) for letters in roles.values() for letter in letters}
    for letter in random.sample([*extents], 1):
        extents[letter] = extent(random)
    operands = {"O": ("batch", "m", "n"), "A": ("batch", "m", "k"), "B": ("batch", "k", "n")}
    arrays, references, guard = [], {}, ""
    for name, parts in operands.items():
        letters = [letter for part in parts for letter in roles[part]]
        random.shuffle(letters)
        places = [_subscript(random, letter, extents[letter], name) for letter in letters]
        if name == "A" and roles["m"] and roles["k"] and random.random() < 0.3:
            places, guard = _window(random, letters, places, extents, roles)
        places = places or [("0", 1)]
        arrays.append(name + "".join(f"[{size}]" for _, size in places))
        references[name] = name + "".join(f"[{text}]" for text, _ in places)
    order = random.sample([*extents], len(extents))
    loops = " ".join(f"{letter}:{extents[letter]}" for letter in order)
    statement = f"{references['O']} += {references['A']} * {references['B']};"
    return str(Nest(nests.c_text(", ".join(arrays), loops, statement, guard)))


def _subscript(random: Random, letter: str, size: int, array: str) -> tuple[str, int]:
    """An affine subscript of one loop, and the extent of its axis."""
    step, start, spare = (
        (1, 0, 0) if array == "O" or random.random() < 0.7
        else (random.choice((1, 2, 3)), random.choice((0, 1, 2)), random.choice((0, 1)))
    )  # fmt: skip
    if random.random() < 0.1:
        return f"{start + step * (size - 1)} - {step} * {letter}", start + step * size + spare
    return f"{step} * {letter} + {start}", start + step * size + spare


def _window(
    random: Random, letters: list[str], places: list[tuple[str, int]],
    extents: Mapping[str, int], roles: Mapping[str, str],
) -> tuple[list[tuple[str, int]], str]:  # fmt: skip
    """The axis of a row slides along that of a reduction; a guard cuts what is outside."""
    row, tap = roles["m"][0], roles["k"][-1]
    step, apart, before = (
        random.choice((1, 1, 2)),
        random.choice((1, 1, 2)),
        random.choice((0, 1)),
    )
    text, size = f"{step} * {row} + {apart} * {tap} - {before}", extents[row] * step
    rest = [
        place for letter, place in zip(letters, places, strict=True) if letter not in (row, tap)
    ]
    return [*rest, (text, size)], f"{text} >= 0 && {text} < {size}"


OPERATORS: Mapping[str, DrawText] = MappingProxyType(
    {
        "conv1d": convolution_text(1),
        "conv2d": convolution_text(2),
        "conv3d": convolution_text(3),
        "deconv": transposed,
        "bwd_d": gradient("bwd_d"),
        "bwd_w": gradient("bwd_w"),
        "matmul": matmul,
        "linear": linear,
        "einsum": subscripts,
        "nest": nest,
    }
)
SHARES = (2, 6, 2, 3, 3, 3, 6, 1, 3, 3)


def random_problem(random: Random, operator: str, layout: str, dtype: str) -> Problem:
    """One that polysci accepts in this layout and precision."""
    real = not precision_named(dtype).integer
    for _ in range(1000):
        try:
            problem = problem_of(OPERATORS[operator](random, real), layout, dtype)
        except (SpecError, UnsupportedError):
            continue
        if problem.flops <= MOST_FLOPS:
            return problem
    raise AssertionError(f"1000 times no {operator} in {layout} and {dtype}")
