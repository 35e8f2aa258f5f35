"""Multiplications that are needed: those of taps in the padding are none."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polysci
from polysci.errors import SpecError
from polysci.numerics.affine import Affine, count_inside
from polysci.ops import Conv1d, Conv2d, Conv3d, Nest
from polysci.ops.convolutions import Convolution
from polysci.ops.model import model_of
from polysci.polyhedral.contraction import needed_products

small = st.integers(1, 3)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    """Over one to three axes, with padding at each end of its own."""
    kind = draw(st.sampled_from([Conv1d, Conv2d, Conv3d]))
    axes, groups = kind.FAMILY.axes, draw(small)
    extents = {size: draw(st.integers(4, 7)) for size, *_ in axes}
    extents |= {taps: draw(small) for _, taps, _, _ in axes}
    outputs = {out: draw(st.one_of(st.none(), st.integers(1, 4))) for _, _, out, _ in axes}
    shape = {"N": draw(st.integers(0, 2)), "C": groups * draw(small), "K": groups * draw(small)}
    each = st.tuples(*(st.integers(0, 3) for _ in axes))
    steps = {name: tuple(1 + value for value in draw(each)) for name in ("stride", "dilation")}
    try:
        return kind(**shape, **extents, **outputs, **steps, pad=draw(each), groups=groups)
    except SpecError:  # no such output
        return kind(**shape, **extents, groups=groups, pad=1)


def brute_force(conv: Convolution) -> int:
    """Twice the iterations of the nest that read inside the image."""
    inside = 0
    for pixel, tap in itertools.product(
        itertools.product(*map(range, conv.pixels)), itertools.product(*map(range, conv.taps))
    ):
        rows = zip(pixel, conv.stride, tap, conv.dilation, conv.pad, strict=True)
        places = [p * step + r * apart - pad for p, step, r, apart, pad in rows]
        sizes = [getattr(conv, size) for size, *_ in conv.FAMILY.axes]
        inside += all(0 <= at < size for at, size in zip(places, sizes, strict=True))
    return 2 * inside * conv.N * conv.K * (conv.C // conv.groups)


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(convolutions())
def test_convolutions(conv: Convolution) -> None:
    assert conv.multiplied_flops == brute_force(conv) <= conv.flops


@pytest.mark.parametrize(
    "text",
    [
        "mb2ic3ih7iw5oc4kh3kw2sh2ph1pw1", "bwd_d mb1ic3ih7oc4kh3ph1", "bwd_w g2ic4ih9oc4kh3sh2ph1",
        "bwd_d mb1ic3ih7oc4kh3sh2ph1", "deconv mb1ic3ih5oc4oh10kh4sh2ph1",
        "conv1d ic2iw9oc3kw3dw1pw2",
        "conv3d mb1ic2id4ih5iw6oc3kd3kh2kw3pd1ph1pw1", "mm:3:4x5x6", "mm:4x5x6 b=constant",
        "mb1ic3ih9iw8oc4oh4ow4kh3kw3ph0pw0", "mb1ic5ih6oc4kh2ph4",
    ],
)  # fmt: skip
def test_every_operator_counts_what_its_nest_multiplies(text: str) -> None:
    """Its loop nest's guards say so, asked of isl point by point."""
    problem: Any = polysci.parse_problem(text)
    scop, roles, _ = model_of(problem)
    (statement,) = scop.statements
    assert problem.multiplied_flops == 2 * statement.domain.count_val().to_python()
    assert problem.multiplied_flops == 2 * needed_products(roles)
    padded = any(word in text for word in ("ph1", "ph4", "pw2"))
    assert (problem.multiplied_flops < problem.flops) is padded


def test_a_nest_of_guards() -> None:
    nest = Nest(
        """float A[9]; float B[3][4]; float O[9][4];
        void f(void) {
        #pragma scop
        for (int i = 0; i < 9; i++) for (int j = 0; j < 4; j++) for (int k = 0; k < 3; k++)
          if (i + k - 1 >= 0 && i + k - 1 < 9) O[i][j] += A[i + k - 1] * B[k][j];
        #pragma endscop
        }"""
    )
    assert (nest.flops, nest.multiplied_flops) == (4 * 54, 4 * 50)


def test_the_known_share_of_a_small_image() -> None:
    conv = Conv2d(N=1, C=512, H=7, W=7, K=512, R=3, S=3, pad=1)
    assert conv.multiplied_flops * 21**2 == conv.flops * 19**2


names = "abc"
extents = st.fixed_dictionaries({name: st.integers(1, 5) for name in names})
affines = st.builds(
    lambda coefs, const: Affine(
        tuple((n, c) for n, c in zip(names, coefs, strict=True) if c), const
    ),
    st.tuples(*(st.integers(-2, 2),) * 3), st.integers(-4, 4),
)  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(affines, st.integers(1, 6)), max_size=4), extents)
def test_subscripts_that_share_dimensions(
    subscripts: list[tuple[Affine, int]], extents: dict[str, int]
) -> None:
    points = (
        dict(zip(extents, at, strict=True))
        for at in itertools.product(*map(range, extents.values()))
    )
    expected = sum(
        all(
            0 <= affine.const + sum(coef * at[name] for name, coef in affine.terms) < size
            for affine, size in subscripts
        )
        for at in points
    )
    assert count_inside(subscripts, extents) == expected


def test_long_axes_take_no_time() -> None:
    conv = Conv1d(N=1, C=1, W=2**40, K=1, S=3, pad=1)
    assert conv.multiplied_flops == conv.flops - 4
