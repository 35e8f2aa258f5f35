"""Models that are none, or that lie: one clear line, the right exit status, nothing written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from polysci.cli import main
from tests.support.compiling import FAST, saved, tiny
from tests.support.onnxmodels import model, node, reals

BAD, FAILED = 2, 1
Edit = Callable[[ModelProto], object]


def refused(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Status and words of a compilation that must end before anything is written."""
    before = sorted(path.parent.rglob("*"))
    out = path.parent / "out"
    status = main(["compile", str(path), *FAST, "-o", str(out), *options])
    said = capsys.readouterr().err
    assert sorted(path.parent.rglob("*")) == before, "something was written"
    lines = [line for line in said.splitlines() if line.startswith("polysci: error: ")]
    assert len(lines) == 1 and "Traceback" not in said, said
    return status, said[said.index(lines[0]) :]


def outside(made: ModelProto, place: str) -> None:
    """Move a weight to another file."""
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)


def resized(made: ModelProto, *dims: int) -> None:
    for dim, size in zip(made.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        dim.dim_value = size


def fill(made: ModelProto, *shape: int) -> None:
    """Add a ConstantOfShape that the graph's output needs."""
    name = made.graph.output[0].name
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape, np.int64), "shape"))
    made.graph.node.extend(
        [node("ConstantOfShape", "shape", "filled"), node("Add", f"{name} filled", "z")]
    )
    made.graph.output[0].name = "z"


BROKEN: dict[str, tuple[Edit, str]] = {
    "cycle": (lambda m: m.graph.node[0].input.__setitem__(0, "t"), "'t', which nothing before"),
    "missing weight": (lambda m: m.graph.initializer.pop(0), "'w1', which nothing before"),
    "no output": (lambda m: m.graph.ClearField("output"), "no outputs"),
    "no nodes": (lambda m: m.graph.ClearField("node"), "no nodes"),
    "made twice": (lambda m: m.graph.node[1].output.__setitem__(0, "a"), "a second time"),
    "no opset": (lambda m: m.ClearField("opset_import"), "no version"),
    "huge input": (lambda m: resized(m, 1, 4, 1 << 40, 1 << 40), "x"),
    "negative input": (lambda m: resized(m, 1, 4, -8, 8), "x"),
    "empty image": (lambda m: resized(m, 1, 4, 0, 8), ""),
    "other channels": (lambda m: resized(m, 1, 5, 8, 8), "Conv"),
    "weights cut": (
        lambda m: setattr(m.graph.initializer[0], "raw_data", b"\0" * 7), "w1",
    ),
    "weights that claim more": (
        lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 40), "w1",
    ),
    "stride 0": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("strides", [0, 0])), "Conv"
    ),
    "negative pads": (
        lambda m: m.graph.node[0].attribute[1].ints.__setitem__(0, -(1 << 60)), "Conv"
    ),
    "groups": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("group", 3)), "Conv"
    ),
    "32 GiB of one value": (
        lambda m: fill(m, 1 << 15, 1 << 18), "takes 34359738368 bytes; expected at most",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_models_that_break_rules(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, word = BROKEN[case]
    made = tiny()
    edit(made)
    status, line = refused(saved(made, tmp_path / "m.onnx"), capsys)
    assert status in (BAD, FAILED) and word in line and len(line) < 1000, (status, line)


@pytest.mark.parametrize("place", ["/etc/passwd", "../../../../etc/passwd", "link", "missing"])
def test_weights_outside_the_folder(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tiny()
    outside(made, place)
    (tmp_path / "link").symlink_to("/etc/passwd")
    path = saved(made, tmp_path / "m.onnx")
    assert refused(path, capsys)[0] == BAD
    status, line = refused(path, capsys, "--external-data")
    assert status == BAD and ("outside the model's folder" in line or "no file" in line)


@pytest.mark.parametrize("data", [b"", b"text", b"\x08", bytes(1000)])
def test_files_that_are_no_model(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert refused(path, capsys)[0] == BAD


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_model_that_is_cut(
    part: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: int(part * len(data))])
    assert refused(path, capsys)[0] == BAD


def test_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(tmp_path / "none.onnx", capsys)[0] == BAD
    (tmp_path / "folder.onnx").mkdir()
    assert refused(tmp_path / "folder.onnx", capsys)[0] == BAD


def test_what_cannot_be_computed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        node("NonZero", "x", "n"),
        node("Flatten", "n", "i", axis=0),
        node("Relu", "x", "y"),
        node("Unique", "x", "u"),
    ]
    made = model(nodes, {"x": (2, 3)}, {"y": (2, 3), "i": None, "u": None})
    status, line = refused(saved(made, tmp_path / "m.onnx"), capsys)
    assert status == FAILED and "flatten" in line and "unique" in line


def test_dimensions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tiny(batch="N"), tmp_path / "m.onnx")
    status, line = refused(path, capsys)
    assert status == BAD and "--dim N=1" in line
    assert "'M'" in refused(path, capsys, "--dim", "N=1", "--dim", "M=2")[1]
    assert "more than once" in refused(path, capsys, "--dim", "N=1", "--dim", "N=2")[1]
    assert refused(path, capsys, "--dim", "N=2147483647")[0] in (BAD, FAILED)
    for words in ("N", "=1", "N=0", "N=-1", "N=x", "N=99999999999"):
        with pytest.raises(SystemExit) as ended:
            main(["compile", str(path), "--dim", words])
        assert ended.value.code == BAD
    assert "Traceback" not in capsys.readouterr().err


def test_a_shape_that_is_absurd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = onnx.numpy_helper.from_array(np.array([1 << 40, 1 << 20], np.int64), "shape")
    nodes = [node("Expand", "x shape", "e"), node("Relu", "e", "y")]
    made = model(nodes, {"x": (1, 1)}, {"y": None})
    made.graph.initializer.append(shape)
    assert refused(saved(made, tmp_path / "m.onnx"), capsys)[0] in (BAD, FAILED)


def test_weights_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = helper.make_tensor("w", TensorProto.STRING, [2], [b"a", b"b"])
    made = model([node("Add", "x w", "y")], {"x": (2,)}, {"y": (2,)}, {"other": reals(2)})
    made.graph.initializer.append(text)
    assert refused(saved(made, tmp_path / "m.onnx"), capsys)[0] in (BAD, FAILED)


@pytest.mark.parametrize("word", [b"Conv", b"w1", b"kernel_shape"])
def test_strings_that_are_no_text(
    word: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny().SerializeToString()
    assert word in data
    path = tmp_path / "m.onnx"
    path.write_bytes(data.replace(word, b"\xff" + word[1:]))
    status, line = refused(path, capsys)
    known = "expected UTF-8 text" in line and "graph." in line
    # protobuf in Python, where it has no compiled wheel, does not parse the message
    refused_by_protobuf = "can't decode byte 0xff" in line and "in field: onnx." in line
    assert status == BAD and (known or refused_by_protobuf)


def test_the_length_of_weights_beside_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weights").write_bytes(bytes(64))
    for length in (65, 1 << 62, 1 << 70):
        made = tiny()
        outside(made, "weights")
        made.graph.initializer[0].external_data.add(key="length", value=str(length))
        status, line = refused(saved(made, tmp_path / "m.onnx"), capsys, "--external-data")
        assert status == BAD and f"bytes 0 to {length}; 'weights' has 64" in line


@pytest.mark.parametrize("sizes", [[0, 0], [1, 1], [1 << 31, 1]])
def test_sizes_of_a_transposed_convolution(
    sizes: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = node("ConvTranspose", "x w", "y", output_shape=sizes)
    made = model([step], {"x": (1, 4, 6, 6)}, {"y": None}, {"w": reals(4, 4, 3, 3)})
    status, line = refused(saved(made, tmp_path / "m.onnx"), capsys)
    assert status == FAILED
    assert f"output_shape {sizes}: expected 2 sizes, none below x's [6, 6]" in line
