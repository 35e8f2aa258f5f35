"""Tensors of GGUF files in their blocks, beside what the package gguf makes of them."""

from pathlib import Path

import numpy as np
import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.gguf import FORMATS, GgufTensor, read_gguf
from polysci.numerics.blocks import decode_blocks

gguf = pytest.importorskip("gguf")
N, K = 5, 512
OFFSETS = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}  # formats with a scale and an offset


def blocks_of_file(name: str) -> np.ndarray:
    """Random bytes as blocks, whose scales are numbers of moderate size."""
    row, random = FORMATS[name], np.random.default_rng(3)
    data = random.integers(0, 256, (N, K // row.numbers, row.bytes)).astype(np.uint8)
    heads = 2 if name in OFFSETS else 1
    scales = random.uniform(0.01, 2, (*data.shape[:2], heads)).astype(np.float16)
    first = row.bytes - 2 if name == "Q6_K" else 0
    data[..., first : first + 2 * heads] = scales.view(np.uint8)
    return data.reshape(N, -1)


def written(path: Path, name: str, data: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "test")
    writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.add_tensor("norm", np.ones(7, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_have_the_values_of_the_format(name: str, tmp_path: Path) -> None:
    data = blocks_of_file(name)
    tensor = read_gguf(written(tmp_path / "w.gguf", name, data))["w"]
    assert (tensor.format, tensor.shape) == (name, (N, K))
    values = decode_blocks(tensor.blocks)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    # A zero is rounded: by 2^-24 of itself, times the scale.
    atol = float(np.abs(expected).max()) * 2.0**-22 if name in OFFSETS else 0
    np.testing.assert_allclose(values, expected, rtol=0, atol=atol)


def test_a_scale_of_zero_leaves_the_minimum() -> None:
    data = blocks_of_file("Q4_K").reshape(N, -1, 144)
    data[..., 4:8] &= 0xC0  # the first four scales
    data = data.reshape(N, -1)
    tensor = GgufTensor("w", "Q4_K", (N, K), data)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q4_K)
    atol = float(np.abs(expected).max()) * 2.0**-22
    np.testing.assert_allclose(decode_blocks(tensor.blocks), expected, rtol=0, atol=atol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMATS)
def test_products_read_the_blocks(name: str) -> None:
    import polysci

    tensor = GgufTensor("w", name, (N, K), blocks_of_file(name))
    product = polysci.compile(tensor.product(2), level="estimate")
    x = np.random.default_rng(1).normal(size=(2, K)).astype(np.float32)
    expected = x.astype(np.float64) @ decode_blocks(tensor.blocks).T
    y = product(x, product.pack_weights(tensor.blocks))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3 * np.abs(expected).max())


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    tensors = read_gguf(written(tmp_path / "w.gguf", "Q4_0", blocks_of_file("Q4_0")))
    with pytest.raises(UnsupportedError, match="tensor 'norm': F32 is none of Q4_0, Q4_1, Q5_0"):
        _ = tensors["norm"].blocks
    short = GgufTensor("w", "Q8_0", (N, K), blocks_of_file("Q8_0")[:, 1:])
    with pytest.raises(SpecError, match="tensor 'w': 2715 bytes, expected 2720"):
        _ = short.blocks
    odd = GgufTensor("w", "Q4_K", (4, 128), np.zeros((4, 72), np.uint8))
    with pytest.raises(UnsupportedError, match="K a multiple of 256"):
        odd.product(1)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    path.write_bytes(b"no GGUF file, but longer than a header of one would be")
    with pytest.raises(SpecError, match=r"w\.gguf': no GGUF file"):
        read_gguf(path)
