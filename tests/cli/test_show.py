"""``--show``: the code of layers and networks as loop IR, C and assembly."""

import re
from pathlib import Path

import pytest

from polysci.cli import main
from polysci.ops.registry import parse_problem
from polysci.tune import optimize
from tests.support.compiling import FAST, ISA, compiled, saved, tiny

LAYER = "mb1ic4ih6oc8oh6kh3ph1"


def test_a_layer(capsys: pytest.CaptureFixture[str]) -> None:
    result = optimize(parse_problem(LAYER), "estimate", isa=ISA)
    shown = dict[str, str]()
    for form in ("ir", "c", "asm"):
        assert main(["optimize", LAYER, *FAST, "--show", form]) == 0
        shown[form] = capsys.readouterr().out
    assert shown["ir"] == f"{result.source.module}\n"
    assert shown["ir"].startswith(f"# primitive: {result.schedule}\nfunction primitive(\n    x: ")
    assert shown["c"].rstrip("\n") == result.source.file.rstrip("\n")
    assert "\nprimitive:\n" in shown["asm"] and shown["asm"].startswith("\t.file")


def test_several_layers_have_titles(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "layers.ir"
    words = ["mm:8x8x8", "mm:8x16x8", *FAST, "--show", "ir", "-o", str(out)]
    assert main(["optimize", *words]) == 0
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# mm:8x8x8" and lines.count("# mm:8x16x8") == 1
    assert not capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    network = compiled(path)
    for form, text in (("ir", str(network.ir)), ("c", network.source), ("asm", network.asm)):
        assert main(["compile", str(path), *FAST, "--show", form]) == 0
        shown, own = (
            re.sub('"/.*/source.c"', '"source.c"', it).rstrip("\n")  # where it was compiled
            for it in (capsys.readouterr().out, text)
        )
        assert shown == own
    heads = [f"/* {name} */" for name in network.code.files]
    assert [line for line in network.source.splitlines() if line in heads] == heads
    assert [line for line in network.asm.splitlines() if line in heads] == heads[1:]  # no header


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("optimize", LAYER, "--show", "llvm"), "argument --show: 'llvm' is none of ir, c, asm"),
        (("optimize", LAYER, "--show", "ir", "--json"), "--show ir: prints code alone; leave out"),
        (
            ("compile", "mlp:1x8x8", "--show", "c", "--json"),
            "c: prints text alone; leave out --json",
        ),
        (
            ("compile", "mlp:1x8x8", "--show", "ir", "-o", "d"),
            "ir: prints text alone; leave out -o",
        ),
    ],
)
def test_refusals(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main([*words])
    except SystemExit as error:
        status = error.code
    assert status == 2 and told in capsys.readouterr().err
