"""Tensors of GGUF files in their blocks, beside what the package gguf makes of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.gguf import FORMATS, GgufTensor, open_gguf, read_gguf
from polysci.frontends.gguf.file import PLAIN
from polysci.frontends.gguf.head import TENSOR_FORMATS
from polysci.numerics.blocks import decode_blocks

gguf = pytest.importorskip("gguf")
N, K = 5, 512
OFFSETS = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}  # formats with a scale and an offset


def blocks_of_file(name: str) -> np.ndarray:
    """Random bytes as blocks, whose scales are numbers of moderate size."""
    row, random = FORMATS[name], np.random.default_rng(3)
    data = random.integers(0, 256, (N, K // row.numbers, row.bytes)).astype(np.uint8)
    heads = 2 if name in OFFSETS else 1
    scales = random.uniform(0.01, 2, (*data.shape[:2], heads)).astype(np.float16)
    first = row.bytes - 2 * heads if name in ("Q2_K", "Q3_K", "Q6_K") else 0
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
    for shape in ((0, 32), (4, 0), (4, 2, 32)):
        with pytest.raises(UnsupportedError, match="expected N x K, K a multiple of 32"):
            _ = GgufTensor("w", "Q8_0", shape, np.zeros(0, np.uint8)).blocks
    odd = GgufTensor("w", "Q4_K", (4, 128), np.zeros((4, 72), np.uint8))
    with pytest.raises(UnsupportedError, match="K a multiple of 256"):
        odd.product(1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:3], "it begins with b'GGU', not b'GGUF'"),
        (lambda data: b"no GGUF file, but longer" + data, "it begins with b'no G'"),
        (lambda data: data[:4] + b"\1" + data[5:], r"version 1: expected one of \(2, 3\)"),
        (lambda data: data[:60], "it ends within its head"),
        (lambda data: data[:8] + b"\xff" * 16 + data[24:], "a value of type|within its head"),
        (lambda data: data.replace(b"norm\1", b"norm\5"), "a tensor of 5 axes: expected at most 4"),
        (lambda data: b"", "it begins with b''"),
    ],
)
def test_other_files_are_refused(
    change: Callable[[bytes], bytes], reason: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "w.gguf", "Q4_0", blocks_of_file("Q4_0"))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SpecError, match=rf"w\.gguf': no GGUF file, or a part of one: .*({reason})"):
        read_gguf(path)


def test_files_that_end_early(tmp_path: Path) -> None:
    """Any number of bytes is refused in words, or has tensors that are refused."""
    whole = written(tmp_path / "w.gguf", "Q4_0", blocks_of_file("Q4_0")).read_bytes()
    for size in range(0, len(whole) - 64, 7):
        path = tmp_path / f"{size}.gguf"
        path.write_bytes(whole[:size])
        with pytest.raises(SpecError):
            _ = read_gguf(path)["w"].blocks
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_gguf(tmp_path / "none.gguf")


def test_metadata_but_for_long_lists(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "test")
    values = {
        "a.bool": True, "a.list": [1, -2, 3], "a.words": ["x", "yy"], "a.real": 0.5, "a.text": "é",
        "a.whole": 7, "a.empty": [0.5],
    }  # fmt: skip
    for key, value in values.items():
        kind = {bool: "bool", list: "array", float: "float64", str: "string", int: "int64"}
        getattr(writer, f"add_{kind[type(value)]}")(key, value)
    writer.add_array("a.tokens", [f"token {at}" for at in range(2000)])
    writer.add_array("a.scores", [0.5] * 2000)
    writer.add_uint64("a.last", 1 << 40)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = {"general.architecture": "test", **values, "a.last": 1 << 40}
    assert open_gguf(tmp_path / "m.gguf").metadata == expected


def test_formats_are_numbered_as_ggml_does() -> None:
    own = [kind.value for kind in gguf.GGMLQuantizationType if kind.value < len(TENSOR_FORMATS)]
    for number in own:
        assert TENSOR_FORMATS[number] == gguf.GGMLQuantizationType(number).name
    assert {*FORMATS, *PLAIN} <= {*TENSOR_FORMATS}
