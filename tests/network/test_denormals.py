"""Denormals in networks: weights without them, runs that flush them, the caller's mode."""

import platform
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polysci.export.network_project import write_project
from polysci.lower.weights_file import PIECE, flush_denormals, has_denormals
from polysci.network.compiled import Network, compile_network
from tests.support.compiling import ISA, saved
from tests.support.exported import run
from tests.support.fpmode import flush, modes
from tests.support.onnxmodels import model, node, reals

pytestmark = [
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "aarch64"),
        reason="no such mode is known of this machine",
    ),
    pytest.mark.sampled,
]
TINY = np.float32(2.0**-130)
QUICK = "CFLAGS=-O1 -Werror"


@pytest.fixture(params=[False, True], ids=["keeping caller", "flushing caller"])
def caller(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the calling thread flushes denormals itself."""
    flush(request.param)
    yield request.param
    flush(False)


def network(folder: Path, threads: int = 1, **options: bool) -> Network:
    """y = 2 * x, and z, a convolution by weights that are denormal."""
    made = model(
        [node("Mul", "x two", "y"), node("Conv", "x w", "z", kernel_shape=[1, 1])],
        {"x": (1, 4, 8, 8)}, {"y": (1, 4, 8, 8), "z": (1, 8, 8, 8)},
        {"two": np.array(2, np.float32), "w": np.full((8, 4, 1, 1), TINY)},
    )  # fmt: skip
    path = saved(made, folder / "m.onnx")
    return compile_network(path, "estimate", threads, isa=ISA, **options)  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run(tmp_path: Path, threads: int, caller: bool) -> None:
    net, before = network(tmp_path, threads), modes(threads)
    outputs = net({"x": np.full((1, 4, 8, 8), TINY)})
    assert not outputs["y"].any() and not outputs["z"].any()
    assert not net({"x": np.full((1, 4, 8, 8), np.float32(2.0**100))})["z"].any()
    assert modes(threads) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_kept_on_request(tmp_path: Path, threads: int) -> None:
    net = network(tmp_path, threads, flush_denormals=False)
    assert (net({"x": np.full((1, 4, 8, 8), TINY)})["y"] == 2 * TINY).all()
    outputs = net({"x": np.full((1, 4, 8, 8), np.float32(2.0**100))})
    assert (outputs["z"] == 2.0**-28).all()


@pytest.mark.exhaustive
def test_a_project(tmp_path: Path) -> None:
    """The header states the bound; its own macro keeps denormals in a build."""
    net = network(tmp_path)
    write_project(net, tmp_path / "net")
    assert "2^-126" in re.sub(r"\s+\*\s+", " ", (tmp_path / "net" / "m.h").read_text())
    (tmp_path / "net" / "tiny.c").write_text(f"""\
#include "m.h"
int main(void)
{{
    static float x[256], y[256], z[512];
    m_model *model = m_load("m.weights", 0);
    m_context *context = model ? m_new(model) : 0;
    if (!context)
        return 3;
    for (int i = 0; i < 256; ++i)
        x[i] = {float(TINY).hex()}f;
    volatile float before = x[0], after;
    m_run(context, x, y, z);
    after = before * 1.5f;
    m_free(context);
    m_unload(model);
    return after != 0 ? y[0] != 0 : 2;
}}
""")
    for flags, status in (("", 0), ("-DPS_KEEP_DENORMALS", 1)):
        done = run("make", "clean", "libm.a", f"{QUICK} {flags}", cwd=tmp_path / "net")
        assert done.returncode == 0, done.stdout
        words = ["-std=c11", "-O1", "tiny.c", "libm.a", "-lm", "-o", "tiny"]
        assert run("gcc", *words, cwd=tmp_path / "net").returncode == 0
        assert run("./tiny", cwd=tmp_path / "net").returncode == status


def test_weights_without_denormals() -> None:
    weights = reals(PIECE + 100)
    assert not has_denormals(weights)
    weights[[3, PIECE + 7]] = TINY, -TINY
    assert has_denormals(weights) and has_denormals(weights[::-1])
    flushed = flush_denormals(weights)
    assert np.flatnonzero(flushed != weights).tolist() == [3, PIECE + 7]
    assert flushed[3] == 0 and flushed[PIECE + 7] == 0 and weights[3] == TINY
    assert not has_denormals(np.full(4, 2.0**-24, np.float16))
