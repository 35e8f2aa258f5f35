"""The command line in other precisions: every command that takes layers, with --dtype."""

import json
import re
import shlex
from pathlib import Path

import pytest

from polysci.measure import check
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops.convolutions import Conv2d
from polysci.space import schedule
from polysci.target.host import detect
from polysci.tune import emit, optimize
from polysci.tune.wisdom import Wisdom
from tests.support.command import done, polysci

LAYER = "mb1ic16ih7oc24kh3ph1"
TYPES = ["bf16", "int8"]
STORED = {"bf16": "bf16", "int8": "u8:s8:u8"}
COMPUTES = {"bf16": ("bf16", "f32"), "int8": ("i8", "i16")}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TYPES)
def test_optimize(dtype: str) -> None:
    told, _ = done(
        "optimize", LAYER, "--dtype", dtype, "--level", "estimate", "--json"
    ).splitlines()
    kernel = json.loads(told)["schedule"].rpartition("> ")[2]
    assert any(f"_{compute}_" in kernel for compute in COMPUTES[dtype])


@pytest.mark.exhaustive
def test_measured_results_are_kept_apart(fresh_cache: Path) -> None:
    """One layer in two precisions: two problems, two records."""
    words = ("optimize", "mb1ic16ih4oc16kh1", "--level", "measure", "--json")
    for dtype in ("f32", "s8:s8:s32"):
        assert json.loads(done(*words, "--dtype", dtype).splitlines()[0])["peak_fraction"] > 0
    keys = {record.problem.rpartition(" ")[2] for record in Wisdom().list()}
    assert sorted(keys) == ["f32", "s8:s8:s32"]
    again, _ = done(
        "optimize", words[1], "--level", "wisdom-only", "--dtype", "s8:s8:s32", "--json"
    ).splitlines()
    assert any(f"_{compute}_" in json.loads(again)["schedule"] for compute in COMPUTES["int8"])
    ran = polysci("optimize", words[1], "--level", "wisdom-only", "--dtype", "bf16")
    assert ran.returncode == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [*TYPES, "f16", "s8:s8:s32"])
def test_check_prints_a_command_that_repeats_it(dtype: str) -> None:
    rows = [
        json.loads(line) for line in done("check", LAYER, "--dtype", dtype, "--json").splitlines()
    ]
    assert {row["mode"] for row in rows if "mode" in row} == {"exact", "bound"}
    command = next(row["command"] for row in rows if "command" in row)
    assert f"--dtype {STORED.get(dtype, dtype)} " in command
    assert "PASS" in done(*shlex.split(command)[1:])


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_verdict_names_the_precision(dtype: str) -> None:
    problem = Conv2d(N=1, C=4, H=4, W=4, K=8, R=1, S=1, dtype=dtype)
    verdict = check.Verdict(problem, schedule.parse("p > it"), 1, "exact", 0)
    words = shlex.split(verdict.command)
    assert ("--dtype" in words) == (dtype != "f32")
    assert dtype == "f32" or words[words.index("--dtype") + 1] == dtype


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", TYPES)
def test_explain(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "why.svg"
    words = ("explain", LAYER, "--dtype", dtype, "--wide")
    told = done(*words, "--plot", str(picture))
    (compute,) = set(re.findall(r"> \w+?_[a-z0-9]+_([a-z0-9]+)_\d+x\d+", told)[:1])
    peak = "FMA peak" if compute == "f32" else f"{compute} peak"
    assert peak in told and (compute == "f32" or "FMA" not in told)
    assert peak in picture.read_text()
    kinds = [
        re.findall(rf"^  {letter} .*? (\w+) +[\d.]+ [KM]?i?B ", told, re.M)[0] for letter in "ABC"
    ]
    row = PRECISIONS[STORED[dtype]]
    assert kinds == [row.x.name, row.w.name, row.y.name]


@pytest.mark.exhaustive
def test_explain_counts_the_bytes_of_the_types() -> None:
    sizes = {}
    for dtype in ("f32", "bf16", "int8"):
        told = json.loads(done("explain", LAYER, "--dtype", dtype, "--json"))
        sizes[dtype] = {one["operand"]: one["bytes"] for one in told["reuse"]}
    for operand, size in sizes["f32"].items():
        assert (sizes["bf16"][operand], sizes["int8"][operand]) == (size / 2, size / 4)


@pytest.mark.parametrize("dtype", TYPES)
def test_report(tmp_path: Path, dtype: str) -> None:
    page = tmp_path / "page.html"
    done("report", LAYER, "--dtype", dtype, "--level", "estimate", "-o", str(page))
    text = page.read_text()
    kernels = set(re.findall(r"brgemm_\w+?_([a-z0-9]+)_\d+x\d+", text))
    assert kernels <= set(COMPUTES[dtype]) and f"nhwc {STORED[dtype]}" in text
    if "f32" not in kernels:
        (compute,) = kernels
        assert f"{compute} peak" in text and "FMA" not in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", TYPES)
def test_rank(dtype: str) -> None:
    told = done("rank", LAYER, "--dtype", dtype)
    assert "traffic" in told and any(f"_{compute}_" in told for compute in COMPUTES[dtype])


@pytest.mark.parametrize("dtype", TYPES)
def test_export(tmp_path: Path, dtype: str) -> None:
    folder = tmp_path / "net"
    done("export", LAYER, "--dtype", dtype, "--level", "estimate", "-o", str(folder))
    header = "".join(path.read_text() for path in folder.glob("*.h"))
    assert ("const uint8_t *x" if dtype == "int8" else "const uint16_t *x") in header


@pytest.mark.parametrize("command", ["optimize", "check", "explain", "rank", "export", "report"])
def test_an_unknown_precision_is_named(command: str, tmp_path: Path) -> None:
    output = ["-o", str(tmp_path / "out")] if command in ("export", "report") else []
    ran = polysci(command, LAYER, "--dtype", "f64", *output)
    assert ran.returncode != 0 and "Traceback" not in ran.stderr
    assert "dtype 'f64': expected one of f32, bf16, bf16:bf16:f32" in ran.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_measured_search_says_how_near_the_peak_it_is(dtype: str) -> None:
    problem = Conv2d(N=1, C=32, H=6, W=6, K=32, R=1, S=1, dtype=dtype)
    result = optimize(problem, "estimate")
    assert result.source.text == emit(problem, result.schedule).text
    assert result.schedule.kernel.split("_")[1] in detect().isa.chain
