"""Exported networks with sizes that data decides: what a run returns where there are too many."""

import sys
from pathlib import Path

import numpy as np
import pytest

from polysci.cli import main
from tests.frontends.onnx.test_data_sizes import loop
from tests.support.command import done
from tests.support.compiling import saved
from tests.support.exported import run

MAIN = """
#include "loop.h"
#include <stdio.h>

@ARENA@
int main(void)
{
@NEW@
    static const float s0[2] = {0, 0};
    float last[2], rows[4 * 2];
    int64_t length = -1, sizes[1] = {-1};
    for (int64_t n = 2; n < 8; n += 3) {
        int code = loop_run(@CONTEXT@, s0, &n, last, rows, &length, sizes);
        printf("%d %d %d;", code, (int)length, (int)sizes[0]);
    }
    return 0;
}
"""
HOSTED = {
    "@ARENA@": "",
    "@NEW@": '    loop_context *context = loop_new(loop_load("loop.weights", 0));',
    "@CONTEXT@": "context",
}
FREE = {
    "@ARENA@": "static _Alignas(64) char arena[LOOP_ARENA_SIZE];", "@NEW@": "",
    "@CONTEXT@": "loop_weights, arena",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(loop(False, "n yes"), tmp_path_factory.mktemp("models") / "loop.onnx")


@pytest.mark.parametrize(
    ("options", "words"),
    [([], HOSTED), pytest.param(["--freestanding"], FREE, marks=pytest.mark.exhaustive)],
)
def test_projects(model: Path, tmp_path: Path, options: list[str], words: dict[str, str]) -> None:
    bound = ["--level", "estimate", "--most", "rows=4", *options]
    done("compile", str(model), *bound, "-o", str(tmp_path / "loop"))
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "loop")
    assert built.returncode == 0 and " 0 failed" in built.stdout, built.stdout
    text = MAIN
    for word, value in words.items():
        text = text.replace(word, value)
    (tmp_path / "loop" / "own.c").write_text(text)
    files = [path.name for path in (tmp_path / "loop").glob("*.c")
             if path.name not in ("main.c", "selftest.c", "bench.c")]  # fmt: skip
    built = run("gcc", "-O1", "-Werror", "-Wno-unknown-pragmas", *files, "-o", "own", "-lm",
                cwd=tmp_path / "loop")  # fmt: skip
    assert built.returncode == 0, built.stdout
    assert run("./own", cwd=tmp_path / "loop").stdout == "0 2 2;6 4 5;"


@pytest.mark.exhaustive
def test_packages(model: Path, tmp_path: Path) -> None:
    bound = ["--level", "estimate", "--most", "rows=4", "--python"]
    done("compile", str(model), *bound, "-o", str(tmp_path / "package"))
    code = "\n".join([
        "import numpy as np", "from loop import net",
        "run = lambda n: net({'n': np.array(n), 's0': np.zeros(2, np.float32)})",
        "print(run(3)['rows'].shape)", "try:", "    run(5)",
        "except ValueError as error:", "    print(error)",
    ])  # fmt: skip
    path = str(tmp_path / "package")
    ran = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=path)
    assert ran.stdout == "(3, 2)\nloop: rows: this run needs at least 5, and most is 4\n"


@pytest.mark.usefixtures("uncapped")
@pytest.mark.parametrize(
    ("options", "said"),
    [(["--isas", "portable,avx2"], "data decides sizes of it, and so it has code of one"),
     (["--device", "cuda:sm_80"], "data decides a size of it, 'rows': only the host checks")],
)  # fmt: skip
def test_what_has_no_bounds(
    model: Path, tmp_path: Path, options: list[str], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if "--device" in options:
        pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
    words = ["--level", "estimate", "--most", "rows=4", *options, "-o", str(tmp_path / "out")]
    assert main(["compile", str(model), *words]) in (1, 2)
    assert said in capsys.readouterr().err
    assert np.array_equal([*tmp_path.iterdir()], [])
