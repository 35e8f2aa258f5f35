"""One C library of a network for several sizes: entries, the choice among them, shared weights."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polysci import notation
from polysci.errors import SpecError, UnsupportedError
from polysci.export.network_project import write_project
from polysci.network.compiled import Network
from polysci.network.sizes import join_sizes
from tests.support.command import done, polysci
from tests.support.exported import all_passed, run
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

SCORES = """
def scores(float(H,M,D) Q, float(H,N,D) K) -> (S, L) {
    S(h,m,n) +=! Q(h,m,d) * K(h,n,d)
    L(h,m) max=! tanh(S(h,m,n)) / 2
}
"""
LIST = ["--dim", "M=5,16", "--dim", "N=7,12", "--dim", "H=2", "--dim", "D=8"]
MAIN = """\
#include <stdio.h>
#include "scores.h"
static float q[2 * 16 * 8], k[2 * 12 * 8], s[2 * 16 * 12], l[2 * 16];
int main(void)
{
    scores_model *model = scores_load("scores.weights", 0);
    scores_context *context = model ? scores_new(model) : 0;
    int64_t m, n;
    if (!context || scores_run(context, 6, 7, q, k, s, l) != SCORES_NO_SIZE)
        return 1;
    while (fread(&m, sizeof m, 1, stdin) && fread(&n, sizeof n, 1, stdin)) {
        const size_t rows = (size_t)m, columns = (size_t)n;
        if (fread(q, 64, rows, stdin) != rows || fread(k, 64, columns, stdin) != columns)
            return 2;
        if (scores_run(context, m, n, q, k, s, l) != SCORES_OK)
            return 3;
        fwrite(s, 8, (size_t)(m * n), stdout);
        fwrite(l, 8, (size_t)m, stdout);
    }
    scores_free(context);
    scores_unload(model);
    return 0;
}
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", ["1", "2", "pthread:2"])
def test_every_entry_of_a_comprehension(tmp_path: Path, threads: str) -> None:
    """Built by hand and run without Python, on one context in turns, against the interpreter."""
    (tmp_path / "scores.tc").write_text(SCORES)
    words = ["--level", "estimate", "--threads", threads, "-o", str(tmp_path / "net")]
    told = done("compile", str(tmp_path / "scores.tc"), *LIST, *words)
    assert told.count(".h") == 1 and told.count("scores.c") == 1
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "net")
    assert built.returncode == 0 and all_passed(built.stdout, 30), built.stdout
    (tmp_path / "net" / "main.c").write_text(MAIN)
    sources = [path for path in (tmp_path / "net").glob("*.c") if path.name != "selftest.c"]
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fopenmp", "-pthread"]
    out = tmp_path / "run"
    made = run("gcc", *flags, *map(str, sources), "-lm", "-o", str(out), cwd=tmp_path / "net")
    assert made.returncode == 0, made.stdout
    cases, data = [], b""
    for m, n in ((16, 12), (5, 7), (16, 7), (5, 12), (16, 12)):
        q, k = reals(2, m, 8, seed=m), reals(2, n, 8, seed=n)
        cases.append(notation.interpret(SCORES, {"Q": q, "K": k}))
        data += np.array([m, n], np.int64).tobytes() + q.tobytes() + k.tobytes()
    ran = subprocess.run([out], input=data, capture_output=True, cwd=tmp_path / "net", check=True)
    results = np.frombuffer(ran.stdout, np.float32)
    expected = np.concatenate([x[name].reshape(-1) for x in cases for name in ("S", "L")])
    np.testing.assert_allclose(results, expected, atol=8 * 2**-24 * 40)


def product(rows: int, scale: float = 1.0) -> Network:
    """A layer, then a constant of its own size: scale."""
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Mul", "c r", "y")]
    constants = {"w": reals(24, 40), "b": reals(40, seed=2), "r": reals(rows, 1, seed=3) * scale}
    return network_of(read(model(nodes, {"x": [rows, 24]}, {"y": None}, constants)))


@pytest.mark.exhaustive
def test_entries_share_weights_that_are_packed_alike(tmp_path: Path) -> None:
    networks = [product(rows) for rows in (4, 8)]
    whole = join_sizes([({"rows": 4}, networks[0]), ({"rows": 8}, networks[1])], "net")
    files = [network.code.weights_file for network in networks]
    sources = [call.source for network in networks for call in network.code.calls.values()]
    packed = {source.packing: source.packed for source in sources}
    file = whole.whole.code.weights_file
    assert len(packed) == 1 and len(sources) == 2 and "packed" in sources[0].packing
    assert file.packed_size == files[0].packed_size == files[1].packed_size > 0
    shapes = sorted(part.array.size for part in file.parts)
    assert shapes == [4, 8, 40, 40, 24 * 40]  # r of either, a scale and a shift, w
    write_project(whole, tmp_path, embed=True)
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path)
    assert built.returncode == 0 and all_passed(built.stdout, 28), built.stdout
    assert "net_rows4_run" in (tmp_path / "net.h").read_text()


@pytest.mark.exhaustive
def test_entries_read_weights_that_were_packed_ahead(tmp_path: Path) -> None:
    """The file is what the library has in memory; every entry is checked with it."""
    words = ["--dim", "rows=3,8", "--level", "estimate", "--packed-weights", "--name", "net"]
    done("compile", "mlp:1x24x40x16 act=relu", *words, "-o", str(tmp_path / "net"))
    whole = (tmp_path / "net" / "net.weights").read_bytes()
    assert whole.startswith(b"polysci packed ")
    assert "net_map" in (tmp_path / "net/net.h").read_text()
    built = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "net")
    assert built.returncode == 0 and all_passed(built.stdout, 20), built.stdout
    assert "net_rows8_run" in (tmp_path / "net" / "net.h").read_text()


@pytest.mark.exhaustive
def test_what_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    own = product(4)
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "y"), node("Abs", "a", "z")]
    made = model(nodes, {"x": [4, 24]}, {"y": None, "z": None}, {"w": reals(24, 40)})
    other = network_of(read(made))
    with pytest.raises(UnsupportedError, match="n5 has other inputs and outputs than n4"):
        join_sizes([({"n": 4}, own), ({"n": 5}, other)], "net")
    with pytest.raises(SpecError, match="expected other sizes of the same names"):
        join_sizes([({"n": 4}, own), ({"n": 4}, own)], "net")
    whole = join_sizes([({"n": 4}, own), ({"n": 8}, product(8))], "net")
    planned = replace(whole, networks=(None, None))
    with pytest.raises(SpecError, match="packed ahead by code that runs here"):
        write_project(planned, tmp_path / "net", packed=True)
    (tmp_path / "scores.tc").write_text(SCORES)
    for words, reason in (
        ([], "it needs -o DIR"),
        (["--python", "-o", str(tmp_path / "net")], "--python: of one size"),
        (["--freestanding", "-o", str(tmp_path / "net")], "--freestanding: of one size"),
        (["--isas", "portable", "-o", str(tmp_path / "net")], "--isas: of one size"),
    ):
        told = polysci("compile", str(tmp_path / "scores.tc"), *LIST, *words)
        assert told.returncode == 2 and reason in told.stderr, told.stderr
    assert not (tmp_path / "net").exists()
