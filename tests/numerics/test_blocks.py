"""Blocks of numbers of 4 and 8 bits hold the values that they were made of."""

import numpy as np
import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.blocks import blocks_of_bytes, decode_blocks, encode_blocks, make_blocks
from polysci.numerics.dtypes import BLOCK_TYPES, BLOCKS, precision_named
from polysci.ops import parse_problem

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_blocks_keep_every_number(name: str) -> None:
    row = BLOCK_TYPES[name]
    bits, signed = int(name[1]), name[0] == "s"
    low = -(2 ** (bits - 1)) if signed else 0
    numbers = RANDOM.integers(low, low + 2**bits, (3, 2 * row.block))
    scale = RANDOM.random((3, 2)).astype(np.float32)
    zero = None if signed else RANDOM.random((3, 2)).astype(np.float32)
    blocks = make_blocks(row.numpy, numbers, scale, zero)
    less = 0 if zero is None else np.repeat(zero, row.block, 1).astype(float)
    expected = (numbers - less) * np.repeat(scale, row.block, 1).astype(float)
    assert blocks.dtype.itemsize == row.bytes == row.block * bits // 8 + 8 - 4 * signed
    np.testing.assert_array_equal(decode_blocks(blocks), expected)


@pytest.mark.parametrize("name", ["s4x16", "u4x32", "s8x64", "u8x16"])
def test_small_integers_are_exact(name: str) -> None:
    row = BLOCK_TYPES[name]
    values = RANDOM.integers(-7, 8, (4, 2 * row.block))
    values[0] = 0
    np.testing.assert_array_equal(decode_blocks(encode_blocks(values, row.numpy)), values)
    reals = RANDOM.standard_normal((4, 2 * row.block))
    blocks = encode_blocks(reals, row.numpy)
    error = abs(decode_blocks(blocks) - reals)
    assert (error <= np.repeat(blocks["scale"], row.block, 1)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_without_zeros_have_the_middle_for_zero(bits: int) -> None:
    raw = RANDOM.integers(0, 256, (2, 1, 2 * bits), np.uint8)
    scale, middle = np.ones((2, 1), np.float32), np.full((2, 1), 2 ** (bits - 1), np.float32)
    signed, unsigned = (
        blocks_of_bytes(BLOCK_TYPES[f"{sign}{bits}x16"].numpy, raw, scale, zero)
        for sign, zero in (("s", None), ("u", middle))
    )
    np.testing.assert_array_equal(decode_blocks(signed), decode_blocks(unsigned))
    assert len(np.unique(decode_blocks(signed))) > 4


def test_precisions_of_blocks_have_a_name_each() -> None:
    assert len(BLOCK_TYPES) == 8 * len(BLOCKS)  # of 4 and 8 bits, signed or not, a8 or not
    assert str(precision_named("F32:s4x32:f32")) == "f32:s4x32:f32"
    with pytest.raises(SpecError, match="f32:s4x32:f32"):
        precision_named("f32:s4x24:f32")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mm:2x64x8 b=constant", "blocks of weights lie along K"),
        ("mm:2x64x8 tb", "blocks of weights lie along K"),
        ("mm:2x64x8 ta tb b=constant", "blocks of weights lie along K"),
        ("mm:3:2x64x8 tb b=constant", "no batch"),
        ("linear:2x40x8", "K=40: expected a multiple of 32"),
    ],
)
def test_products_that_have_no_blocks_are_refused(words: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse_problem(words, "", "f32:s4x32:f32")


def test_convolutions_have_no_blocks() -> None:
    with pytest.raises(UnsupportedError, match=r"dtype=.*blocks of weights are those of products"):
        parse_problem("mb1ic64ih4oc8kh1", "nhwc", "f32:s4x32:f32")
