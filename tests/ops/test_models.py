"""The model files: every network against its published size, and every way to be wrong."""

import math
from pathlib import Path

import pytest

from polysci.errors import SpecError
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load, names
from polysci.ops.matmul import Matmul
from polysci.target.extensions import resource

# Convolutions, and multiply-adds in G without the fully connected layers. Published totals with
# them: ResNet-50 3.86 and 4.09, ResNeXt-50 4.23, VGG-16 15.47, AlexNet 0.72, GoogLeNet 1.58,
# Inception v3 5.71, MobileNet 0.569 and 0.300; darknet gives YOLOv2 62.94 G operations.
PUBLISHED = {
    "alexnet": (5, 0.6658),
    "fastrcnn": (3 + 100 + 3 + 1, 69.06),
    "gemm": (40, 127.186),
    "googlenet_v1": (57, 1.582),
    "inception_v3": (94, 5.711),
    "maskrcnn": (104 + 8 + 15 + 8, 321.9),
    "mobilenet_v1": (27, 0.5677),
    "mobilenet_v2": (52, 0.2995),
    "boda": (68, 3.0476),
    "mopt": (32, 16.847),
    "resnet50": (53, 3.856),
    "resnet50_v15": (53, 4.087),
    "resnext50": (53, 4.228),
    "vgg16": (13, 15.35),
    "yolov2": (23, 62.94 / 2),
}
# C K H R stride: rows of published layer lists (PolyDL's experiments; libxsmm-dnn for v1.5).
ROWS = {
    "resnet50": [
        (3, 64, 224, 7, 2),
        (256, 512, 56, 1, 2),
        (512, 128, 28, 1, 1),
        (512, 512, 7, 3, 1),
    ],
    "resnet50_v15": [(128, 128, 56, 3, 2), (256, 128, 56, 1, 1), (1024, 2048, 14, 1, 2)],
    "vgg16": [(64, 128, 112, 3, 1), (512, 512, 14, 3, 1)],
    "googlenet_v1": [(512, 24, 14, 1, 1), (160, 320, 7, 3, 1), (48, 128, 7, 5, 1)],
    "inception_v3": [(288, 384, 35, 3, 2), (448, 384, 8, 3, 1), (2048, 320, 8, 1, 1)],
    "mobilenet_v1": [(64, 128, 56, 1, 1), (1024, 1024, 7, 1, 1), (512, 512, 14, 3, 2)],
    "yolov2": [(1280, 1024, 19, 3, 1), (512, 64, 38, 1, 1), (1024, 425, 19, 1, 1)],
    "fastrcnn": [(1024, 512, 47, 3, 1), (128, 128, 94, 3, 2), (2048, 512, 7, 1, 1)],
    "maskrcnn": [(256, 512, 256, 3, 1), (256, 1024, 7, 7, 1), (512, 12, 16, 1, 1)],
}
GOOD = 'mb1ic64ih56oc64oh56kh3ph1n"res2a*3"'


def lines_of(name: str) -> list[str]:
    text = resource("models", f"{name}.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_every_network_has_its_facts() -> None:
    assert names() == sorted(PUBLISHED)
    readme = resource("models", "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.txt`" in readme for name in names())


@pytest.mark.parametrize("name", names())
def test_totals(name: str) -> None:
    layers = load(name)
    convolutions, multiply_adds = PUBLISHED[name]
    assert sum(layer.multiplicity for layer in layers) == convolutions
    total = sum(layer.multiplicity * layer.flops for layer in layers) / 2e9
    assert math.isclose(total, multiply_adds, rel_tol=5e-4)


@pytest.mark.parametrize("name", names())
def test_header_tells_the_totals(name: str) -> None:
    layers = load(name)
    total = sum(layer.multiplicity * layer.flops for layer in layers) / 2e9
    count = sum(layer.multiplicity for layer in layers)
    text = resource("models", f"{name}.txt").read_text(encoding="utf-8")
    kind = "matrix products" if isinstance(layers[0], Matmul) else "convolutions"
    facts = f"# {count} {kind}, {len(layers)} shapes, {total:.3f} G multiply-adds."
    assert facts in text.splitlines()


@pytest.mark.parametrize("name", names())
def test_lines_are_canonical(name: str) -> None:
    assert [str(layer) for layer in load(name)] == lines_of(name)


@pytest.mark.parametrize("name", names())
def test_layers_are_distinct_named_and_at_batch_1(name: str) -> None:
    layers = load(name)
    assert len({layer.key for layer in layers}) == len(layers)
    assert len({layer.name for layer in layers}) == len(layers)
    assert all(layer.name and (isinstance(layer, Matmul) or layer.N == 1) for layer in layers)


@pytest.mark.parametrize("name", ROWS)
def test_published_rows(name: str) -> None:
    layers = load(name)
    shapes = {(p.C, p.K, p.H, p.R, p.stride[0]) for p in layers}
    assert not set(ROWS[name]) - shapes


def test_resnet50_names() -> None:
    layer = next(layer for layer in load("resnet50") if layer.name == "res2a_branch2b")
    assert layer == Conv2d(1, 64, 56, 56, 64, 3, 3, pad=1, name=layer.name, multiplicity=3)


def test_grouped_and_depthwise_layers() -> None:
    assert {layer.groups for layer in load("alexnet")} == {1, 2}
    assert {layer.groups for layer in load("resnext50")} == {1, 32}
    for name, count in (("mobilenet_v1", 13), ("mobilenet_v2", 17)):
        depthwise = [p for p in load(name) if p.groups > 1]
        assert sum(p.multiplicity for p in depthwise) == count
        assert all(p.groups == p.C == p.K for p in depthwise)


def test_layout() -> None:
    assert {layer.layout for layer in load("resnet50", "nchw")} == {"nchw"}


def test_comments_blank_lines_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    hash_in_name = GOOD.replace("res2a*3", r"a # \"b\" # c")
    text = f'\ufeff# head\r\n\r\n  {GOOD}  # it\'s "res"\r\n{hash_in_name}#x\n{GOOD}\n'
    path.write_bytes(text.encode())
    first, second, third = load(path)
    assert (first.name, first.multiplicity) == ("res2a", 3)
    assert (second.name, second.multiplicity) == ('a # "b" # c', 1)
    assert third == first == load(str(path))[0]


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("mb1ic64ih56oc0kh3", "2:12", "oc0 must be positive"),
        ("  g4ic6ih8oc8kh3 # grouped", "2:5", "ic6 is not divisible by g4"),
        (f"{GOOD} {GOOD}", "2:36", "text after the name's quote"),
        ("mb1ic64ih56oc64kh3 ph1", "2:19", "unknown word ' ph1'"),
        ('ic3ih8oc4kh3n"a # b', "2:14", "the name's quote is not closed"),
        ("--mb=1 ic3ih8oc4kh3", "2:1", "unknown word"),
    ],
)
def test_a_bad_line_is_located(tmp_path: Path, line: str, place: str, message: str) -> None:
    path = tmp_path / "net.txt"
    path.write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load(path)
    first, shown, caret = str(caught.value).splitlines()[:3]
    assert first.startswith(f"{path}:{place}: ")
    assert message in first
    assert shown.strip() in line
    assert caret.index("^") - 3 == int(place.split(":")[1])


@pytest.mark.parametrize("text", [b"", b"# nothing\n\n"])
def test_a_file_without_layers(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "net.txt"
    path.write_bytes(text)
    with pytest.raises(SpecError, match=r"net\.txt: no layers"):
        load(path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_bytes(b"# \xff\n")
    with pytest.raises(SpecError, match="not UTF-8 text: byte 2"):
        load(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load(tmp_path / "net.txt")


def test_unknown_names_are_answered_with_the_known() -> None:
    with pytest.raises(SpecError, match=r"no model 'resnet51'.*alexnet.*resnet50,"):
        load("resnet51")


def test_resources_of_a_checkout() -> None:
    assert resource("models").parent == resource("microkernels").parent
