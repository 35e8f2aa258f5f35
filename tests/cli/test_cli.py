"""The command line: its output and exit status, a few times as a process of its own."""

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polysci import cli
from polysci.cli import COMMANDS
from polysci.errors import SpecError
from polysci.ops import parse_problem
from tests.support.command import done, polysci, process, started

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
NEST = "nest C[4][5]+=A[4][6]*B[6][5] for i:4 j:5 k:6 : C[i][j] A[i][k] B[k][j]"
DATA = Path(__file__).parents[1] / "data"
ARM = str(DATA.parent.parent / "experiments/machines/neoverse-n1-64.toml")
FOREIGN = "avx2" if platform.machine() == "aarch64" else "neon"


pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "command",
    ["", *(module.__name__.rsplit(".", 1)[-1] for module in COMMANDS)],
)
def test_help(command: str) -> None:
    assert "usage: polysci" in done(*command.split(), "--help")


def test_a_process_gets_the_words_and_gives_the_status() -> None:
    ran = process("--help")
    assert (ran.returncode, ran.stderr) == (0, "") and "usage: polysci" in ran.stdout
    assert process("optimize", "no/such/file.txt").returncode == 2


@pytest.mark.exhaustive
@pytest.mark.measured
def test_optimize_prints_json_lines_and_a_summary() -> None:
    ran = polysci("optimize", f'{LAYER}n"a*3"', LAYER, "--json", "--level", "measure")
    assert ran.returncode == 0, ran.stderr
    first, second, summary = map(json.loads, ran.stdout.splitlines())
    assert (first["layer"], first["multiplicity"]) == ("a", 3)
    assert first["schedule"] == second["schedule"]
    assert first["seconds"] > 0 and first["peak_fraction"] > 0 and first["trials"] > 1
    assert summary["summary"]["layers"] == 2
    assert summary["summary"]["network_seconds"] == pytest.approx(4 * first["seconds"])


@pytest.mark.exhaustive
def test_optimize_prints_a_table_and_reuses_wisdom(tmp_path: Path) -> None:
    done("optimize", LAYER)
    table = tmp_path / "table.txt"
    ran = polysci("optimize", LAYER, "--level", "wisdom-only", "-o", str(table))
    assert ran.returncode == 0, ran.stderr
    assert "[1/1]" in ran.stderr  # one plain line a layer where there is no terminal
    head, row, *_, note, total = table.read_text().splitlines()
    assert "1 of 1 from records of earlier searches" in note
    assert head.split()[:2] == ["layer", "schedule"]
    assert row.startswith(LAYER) and " > brgemm_" in row
    assert "GFLOP/s" in total


@pytest.mark.exhaustive
def test_batch_layout_and_threads_reach_the_layers() -> None:
    options = ("--batch", "2", "--layout", "nchw", "--threads", "2", "--level", "estimate")
    first = json.loads(done("optimize", LAYER, "--json", *options).splitlines()[0])
    assert not first["problem"].startswith("mb") and first["layout"] == "nchw"  # mb2: the default
    assert first["threads"] == 2 and first["seconds"] is None


@pytest.mark.exhaustive
def test_convolutions_of_a_list_in_another_direction() -> None:
    options = ("--dir", "BWD_W", "--batch", "1", "--json", "--level", "estimate")
    first = json.loads(done("optimize", LAYER, *options).splitlines()[0])
    assert first["problem"] == f"bwd_w {parse_problem(LAYER).with_batch(1)}"
    forward = json.loads(done("optimize", LAYER, "--dir", "fwd", *options[2:]).splitlines()[0])
    assert forward["problem"] == first["problem"].removeprefix("bwd_w ")
    for layer in ("mm:4x4x4", f"bwd_w {LAYER}"):
        ran = polysci("optimize", layer, *options)
        assert ran.returncode == 1 and "expected a convolution" in ran.stderr


@pytest.mark.exhaustive
def test_a_nest_in_c_is_a_layer(tmp_path: Path) -> None:
    path = tmp_path / "matmul.c"
    path.write_text(
        "float A[12][20], B[20][40], C[12][40];\n#pragma scop\n"
        "for (int i = 0; i < 12; i++) for (int j = 0; j < 40; j++) for (int k = 0; k < 20; k++)\n"
        "  C[i][j] += A[i][k] * B[k][j];\n#pragma endscop\n"
    )
    options = ("--json", "--level", "estimate")
    first = json.loads(done("optimize", str(path), *options).splitlines()[0])
    assert "brgemm" in first["schedule"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("optimize", "mb1ic8ih10oc24kh3zz4"), "zz"),
        (("optimize", "no/such/file.txt"), "no/such/file.txt"),
        (("optimize", LAYER, "--level", "hard"), "--level"),
        (("optimize", LAYER, "--threads", "0"), "expected 1 to 1024 threads, got '0'"),
        (("optimize", LAYER, "--threads", "1025"), "expected 1 to 1024 threads"),
        (("check", LAYER, "--schedule", ""), "schedule '': expected 'LOOPS > KERNEL'"),
        (
            (
                "check",
                LAYER,
                "--algorithm",
                "winograd",
                "--schedule",
                "k:4 > brgemm_portable_f32_1x4",
            ),
            "is direct, and --algorithm asks for winograd",
        ),
        (("check", LAYER, "--isa", FOREIGN), f"--isa {FOREIGN}: for "),
        (
            ("check", LAYER, "--schedule", f"k:8 p q > brgemm_{FOREIGN}_f32_1x8"),
            f"needs {FOREIGN}, which this CPU does not run",
        ),
        (("optimize", NEST, "--dtype", "bf16"), "dtype 'bf16': a loop nest is computed in f32"),
        (("optimize", NEST, "--layout", "nchw"), "layout 'nchw': a loop nest has its arrays' own"),
        (
            ("export", LAYER, "--python", "-o", "unused", "--machine", ARM, "--level", "estimate"),
            "--python builds for this CPU, which has no neon" if FOREIGN == "neon" else "",
        ),
        (("optimize", LAYER, "--ranker", "luck"), "ranker 'luck'"),
        (("optimize", LAYER, "--isa", "mmx"), "mmx"),
        (("optimize", LAYER, "-o", "/no/such/folder/x"), "/no/such/folder/x"),
        (("explain", LAYER, "--schedule", "k:7 > x"), "x"),
        (("check", LAYER, "--schedule", "p", "--all", "2"), "exclude"),
        (("export", LAYER), "-o"),
        (("wisdom", "import", "/no/such/file"), "/no/such/file"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_bad_input_is_one_clear_error(words: tuple[str, ...], told: str) -> None:
    ran = polysci(*words)
    assert ran.returncode in (1, 2)
    assert told in ran.stderr and "Traceback" not in ran.stderr
    assert ran.stdout == "" or words[0] == "optimize"


def test_a_nest_that_is_not_affine_gets_a_caret(tmp_path: Path) -> None:
    path = tmp_path / "bad.c"
    path.write_text(
        "float A[8][8], B[8][8], C[8][8];\n#pragma scop\n"
        "for (int i = 0; i < 8; i++) for (int j = 0; j < 8; j++) for (int k = 0; k < 8; k++)\n"
        "  C[i][j] += A[i*j][k] * B[k][j];\n#pragma endscop\n"
    )
    ran = polysci("explain", str(path))
    assert ran.returncode == 2
    assert "bad.c:4" in ran.stderr and "^" in ran.stderr


@pytest.mark.exhaustive
def test_explain_shows_the_whole_reasoning() -> None:
    text = done("explain", LAYER, "--schedule", "k:16 p q:5 > brgemm_portable_f32_5x4".replace(
        "k:16", "k:4"), "--isa", "portable")  # fmt: skip
    for part in ("domain", "GEMM roles", "Traffic", "the least", "Nearest rivals", "working set"):
        assert part in text
    assert json.loads(done("explain", LAYER, "--json"))["roles"].startswith("m=")


@pytest.mark.exhaustive
def test_check_prints_lines_that_reproduce_themselves() -> None:
    lines = done("check", LAYER, "--all", "2").splitlines()
    assert lines[-1] == "4 passed, 0 failed"
    mode, command = lines[0].split(": ", 1)
    assert mode == "PASS exact"
    assert done(*shlex.split(command)[1:]).splitlines()[0] == lines[0]


@pytest.mark.exhaustive
def test_exported_code_builds_and_tests_itself(tmp_path: Path) -> None:
    out = tmp_path / "net"
    done("export", LAYER, 'mb1ic4ih5oc6kh1n"../x*/"', "-o", str(out), "--level", "estimate")
    ran = subprocess.run(["make", "-C", str(out), "check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 failed" in ran.stdout
    again = polysci("export", LAYER, "-o", str(DATA), "--level", "estimate")
    assert again.returncode == 2 and "Traceback" not in again.stderr  # other people's files


@pytest.mark.exhaustive
def test_wisdom_travels(tmp_path: Path) -> None:
    done("optimize", LAYER)
    assert LAYER in done("wisdom", "list")
    file = tmp_path / "w.json"
    assert "written" in done("wisdom", "export", str(file))
    assert "imported" in done("wisdom", "import", str(file))
    file.write_text("[{]")
    ran = polysci("wisdom", "import", str(file))
    assert ran.returncode == 1 and str(file) in ran.stderr


def test_machine_and_doctor(tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    told = done("machine", "-o", str(file))
    assert "FMA peak" in told and "not fitted" in told
    assert "isa =" in file.read_text()
    assert "compiler" in polysci("doctor").stdout


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_was_measured() -> None:
    words = ("optimize", LAYER, 'mb1ic16ih30oc40kh3ph1n"b"', "--level", "exhaustive", "--json")
    with started(sys.executable, "-m", "polysci", *words, "--time-limit", "4") as search:
        assert search.stderr is not None
        assert search.stderr.readline().startswith("[1/2]")  # the second search is under way
        search.send_signal(signal.SIGINT)
        out, err = search.communicate(timeout=60)
    assert search.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    *rows, summary = map(json.loads, out.splitlines())
    assert summary["summary"]["layers"] == len(rows) >= 1
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.exhaustive
def test_a_closed_pipe_is_quiet() -> None:
    command = f"{shlex.quote(sys.executable)} -m polysci explain {LAYER} | head -n 1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr == ""


def test_without_the_peer_bench_says_how_to_get_it() -> None:
    ran = polysci("bench", LAYER, "--against", "nobody")
    assert ran.returncode == 2 and "nobody" in ran.stderr
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        ran = polysci("bench", LAYER, "--against", "torch")
        assert ran.returncode == 1 and "polysci[peers]" in ran.stderr


def test_threads_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYSCI_NUM_THREADS", "two")
    ran = polysci("optimize", LAYER, "--level", "estimate")
    assert ran.returncode == 2 and "POLYSCI_NUM_THREADS" in ran.stderr
    assert "POLYSCI_NUM_THREADS" in os.environ


def test_an_error_before_the_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a broken kernels.def, whose instruction sets the options list."""

    def refuse() -> None:
        raise SpecError("kernels.def, line 3: expected KERNELS(...)")

    monkeypatch.setattr(cli, "parser", refuse)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "polysci: error: kernels.def, line 3: expected KERNELS(...)\n"
    with pytest.raises(SpecError):
        cli.main(["doctor", "--traceback"])
