"""Networks as freestanding C: their self-test, what they call, how much stack they take."""

import re
from pathlib import Path

import pytest

from polysci.export.freestanding import write_freestanding
from polysci.network.compiled import Network
from tests.printers.test_sanitized import every_form
from tests.support import aarch64
from tests.support.command import done, polysci
from tests.support.compiling import compiled, saved, tiny
from tests.support.exported import WARNINGS, run

QUICK = "CFLAGS=-O1 -Werror -fstack-usage"
ALLOWED = {"memcpy", "memmove", "memset", "memcmp"}
MACHINES = Path(__file__).parents[2] / "experiments" / "machines"
STACK = 32 << 10  # bytes, as the header says


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return compiled(saved(tiny(), tmp_path_factory.mktemp("models") / "tiny.onnx"))


@pytest.fixture(scope="module")
def project(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("free") / "tiny"
    write_freestanding(network, out)
    built = run("make", "all", "check", QUICK, cwd=out)
    assert built.returncode == 0 and "7 passed, 0 failed" in built.stdout, built.stdout
    return out


@pytest.mark.exhaustive
def test_what_the_library_calls_and_keeps(project: Path) -> None:
    rows = run("nm", "-A", "libtiny.a", cwd=project).stdout.split("\n")
    kinds = [row.split()[-2:] for row in rows if row]
    outside = {name for kind, name in kinds if kind == "U" and "tiny" not in name}
    assert {name for name in outside if not name.startswith(("__cpu_", "_GLOBAL_"))} <= ALLOWED
    writable = [name for kind, name in kinds if kind in "BbDdCSsGg"]
    assert not [name for name in writable if not re.fullmatch(r"answer(\.\d+)?", name)]
    sources = [path.read_text() for path in project.glob("tiny*.c")]
    included = set(re.findall(r"#include <([\w./]+)>", "".join(sources)))
    assert not included & {"stdio.h", "stdlib.h", "unistd.h", "sys/mman.h", "time.h"}


def test_the_stack_that_a_run_takes(project: Path) -> None:
    """Calls are at most six deep: entry, thread, stages, primitive, tile, helper."""
    files = [path for path in project.glob("*.su") if path.name != "selftest.su"]
    sizes = sorted(int(line.split()[1]) for path in files for line in path.read_text().splitlines())
    assert sizes and sum(sizes[-6:]) < STACK


def test_the_usage_compiles_and_runs(project: Path, tmp_path: Path) -> None:
    header = (project / "tiny.h").read_text()
    lines = re.findall(r"^ \*     (.*)$", header.partition(" * Tensors")[0], re.MULTILINE)
    assert len(lines) == 5
    text = ['#include "tiny.h"', "int main(void)", "{", *lines, "return 0;", "}", ""]
    (tmp_path / "usage.c").write_text("\n".join(text))
    words = ["-std=c11", *WARNINGS, f"-I{project}"]
    built = run("gcc", *words, "usage.c", str(project / "libtiny.a"), "-o", "usage", cwd=tmp_path)
    assert built.returncode == 0, built.stdout
    assert run("./usage", cwd=tmp_path).returncode == 0


@pytest.mark.exhaustive
def test_everything_that_a_stage_may_be(tmp_path: Path) -> None:
    """By the command, for plain C, which another processor runs too."""
    path = saved(every_form(), tmp_path / "every.onnx")
    words = ["--level", "estimate", "--isa", "portable", "--freestanding"]
    assert "every_weights.c" in done("compile", str(path), *words, "-o", str(tmp_path / "net"))
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "net")
    assert built.returncode == 0 and " 0 failed" in built.stdout, built.stdout
    aarch64.need()
    flags = ("-O1", "-Wno-unknown-pragmas", f"-I{tmp_path / 'net'}", *aarch64.INCLUDES)
    program = aarch64.build(tmp_path / "selftest", [*(tmp_path / "net").glob("*.c")], *flags)
    ran = aarch64.run(program, tmp_path / "net")
    assert ran.returncode == 0 and " 0 failed" in ran.stdout, ran.stdout


def test_a_described_machine_chooses_schedules(tmp_path: Path) -> None:
    """By its caches; nothing is measured, and what the code computes is checked here."""
    small = (MACHINES / "cortex-m7-1.toml").read_text()
    large = small.replace("size = 16384", f"size = {1 << 20}")
    texts = []
    for name, text in (("small", small), ("large", large)):
        file, out = tmp_path / f"{name}.toml", tmp_path / name
        file.write_text(text)
        words = ["--freestanding", "--machine", str(file), "--name", "net", "-o", str(out)]
        assert "flash: " in done("compile", "mlp:16x256x256", *words)
        texts.append((out / "net_scalar_0.c").read_text())
    assert small != large and texts[0] != texts[1]
    built = run("make", "check", QUICK, cwd=tmp_path / "small")
    assert built.returncode == 0 and " 0 failed" in built.stdout, built.stdout


def test_what_it_excludes(tmp_path: Path) -> None:
    path = str(saved(tiny(), tmp_path / "m.onnx"))
    out = ["-o", str(tmp_path / "net")]
    for words, reason in (
        ([], "--freestanding: says what to write"),
        (["--threads", "2", *out], "threads=2: freestanding code has one thread"),
        (["--embed", *out], "--freestanding: leave out --embed"),
        (["--isas", "portable", *out], "--freestanding: leave out --isas"),
        (["--machine", str(MACHINES / "neoverse-n1-64.toml"), *out], "CPU does not run neon"),
    ):
        told = polysci("compile", path, "--level", "estimate", "--freestanding", *words)
        assert told.returncode == 2 and reason in told.stderr, told.stderr
