"""Freestanding networks on microcontrollers that qemu imitates: results, and memory."""

import re
import runpy
from pathlib import Path

import onnx
import pytest

from polysci.export.freestanding import STACK
from polysci.quantize import quantize_model
from tests.support import boards
from tests.support.command import done
from tests.support.compiling import saved, tiny
from tests.support.exported import run
from tests.support.kernelunit import ROOT
from tests.support.onnxmodels import model, node, reals

EXAMPLE = ROOT / "examples/microcontroller/spotting.py"
ESTIMATE = ("--level", "estimate", "--freestanding")


def cell() -> onnx.ModelProto:
    """A step of an LSTM, which gets the state of the last one."""
    weights = {"w": reals(1, 64, 8), "r": 0.3 * reals(1, 64, 16, seed=1), "b": reals(1, 128)}
    return model(
        [node("LSTM", "x w r b - h c", "- hn cn", hidden_size=16)],
        {"x": (1, 1, 8), "h": (1, 1, 16), "c": (1, 1, 16)},
        {"hn": (1, 1, 16), "cn": (1, 1, 16)}, weights,
    )  # fmt: skip


def written(name: str, folder: Path, isa: str) -> tuple[Path, str]:
    """The project of a network by its name, and what the command says."""
    words: tuple[str, ...] = ()
    path = str(folder / f"{name}.onnx")
    if name == "mlp":
        path = "mlp:1x24x16x4 act=relu"
    elif name == "lstm":
        saved(cell(), Path(path))
        words = ("--state", "h=hn", "--state", "c=cn")
    elif name == "tiny":
        saved(tiny(), Path(path))
    else:
        example = runpy.run_path(str(EXAMPLE))
        proto = example["keyword"]()
        if name == "int8":
            proto = quantize_model(proto, {"x": example["samples"](4)}).model
        saved(proto, Path(path))
    out = folder / name
    said = done("compile", path, *ESTIMATE, "--isa", isa, *words, "--name", "net", "-o", str(out))
    return out, said


def check_memory(project: Path, said: str, core: str) -> None:
    """Compare what the command and the README say with what lies in the program."""
    numbers = [
        int(number) for line in said.splitlines()[-2:] for number in re.findall(r"\d+", line)
    ]
    weights, arena, *_, stack = numbers
    program = boards.symbols(project / "board" / core / "selftest")
    assert program["net_weights"][1] == weights
    assert program["arena"][1] == arena + 64  # of a canary
    flash = 0x60000000 if core == "cortex-m55" else 0  # of these boards; RAM begins at 0x20000000
    assert flash <= program["net_weights"][0] < flash + (3 << 20)
    assert 0x20000000 <= program["arena"][0] < 0x22000000
    rows = boards.make(project, "size", core).splitlines()[1:]
    text, data, bss = (int(word) for word in rows[-1].split()[:3])
    assert data == bss == 0 and weights < text
    (own,) = (row for row in rows if "net_weights.o" in row)
    assert int(own.split()[0]) == weights
    readme = (project / "README.md").read_text()
    for row in (f"weights | {weights} |", f"arena | {arena} |", f"less than {stack} |"):
        assert row in readme
    assert stack == STACK


def passes(project: Path, core: str) -> None:
    """Run the self-test on a board; a run takes less stack than is said."""
    said = boards.make(project, "board", core)
    assert " 0 failed" in said, said
    taken = [int(number) for number in re.findall(r"stack: (\d+) bytes", said)]
    assert len(taken) == 2 and 0 < max(taken) < STACK


def test_a_network_runs_on_a_board_and_takes_the_memory_that_is_said(tmp_path: Path) -> None:
    boards.need()
    project, said = written("mlp", tmp_path, "portable")
    passes(project, "cortex-m7")
    check_memory(project, said, "cortex-m7")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["keyword", "int8", "mlp", "lstm", "tiny"])
def test_networks_run_on_helium(tmp_path: Path, name: str) -> None:
    """Their weights are packed here, by the same C without its intrinsics."""
    boards.need()
    project, said = written(name, tmp_path, "helium")
    passes(project, "cortex-m55")
    check_memory(project, said, "cortex-m55")
    here = run("make", "check", "CFLAGS=-O1 -Werror", cwd=project)
    assert here.returncode == 0 and " 0 failed" in here.stdout, here.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["keyword", "int8", "mlp", "lstm", "tiny"])
def test_networks_run_on_every_core(tmp_path: Path, name: str) -> None:
    boards.need()
    project, said = written(name, tmp_path, "scalar")
    for core in boards.CORES:
        passes(project, core)
        check_memory(project, said, core)


@pytest.mark.exhaustive
def test_a_network_for_a_pool_runs_in_one_thread_of_a_board(tmp_path: Path) -> None:
    boards.need()
    path, out = saved(tiny(), tmp_path / "m.onnx"), tmp_path / "net"
    words = ("--isa", "portable", "--threads", "callback:2", "-o", str(out))
    done("compile", str(path), *ESTIMATE, *words)
    passes(out, "cortex-m55")
