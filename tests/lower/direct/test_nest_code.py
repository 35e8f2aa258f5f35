"""Nests through the whole program: generated code, primitives, records, exports, commands."""

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import polysci
from polysci.cost.shortlist import choices
from polysci.errors import SpecError, UnsupportedError
from polysci.explain import explain, render
from polysci.export import ExportedLayer, export_c, export_python
from polysci.measure.integer_reference import Arrays
from polysci.ops import Nest, parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.primitive import Primitive
from polysci.runtime.source import Source
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit, model_of, optimize
from polysci.tune.wisdom import Wisdom
from tests.support import command as commands
from tests.support import samples
from tests.support.flags import QUICK
from tests.support.nests import MATMUL, TEXTS, c_text, nest, textbook_c

DATA = Path(__file__).parents[2] / "data"
SHARED = ("matmul", "names that end in digits", "two batches", "filter turned", "depthwise")


def planned(name: str, isa: str, threads: int) -> tuple[Nest, Schedule, Source]:
    """The model's choice where one thread computes, a random schedule of the space for two."""
    problem = nest(name)
    context = samples.fixed_context(problem, threads, detect(isa))
    if threads == 1:
        plan = choices(context, 1)[0].schedule
    else:
        (plan,) = samples.members(context, 1, seed=len(name))
    return problem, plan, emit(problem, plan, threads, EmitOptions("made"))


@functools.cache
def primitive_of(name: str, threads: int) -> Primitive:
    """A nest of the table for one thread on the best ISA, or in portable C for two."""
    problem, plan, source = planned(
        name, detect().isa.name if threads == 1 else "portable", threads
    )
    path = cache.build(source.file, flags=QUICK)
    return Primitive(problem, plan, source, load(path, source.declarations), "made")


@pytest.mark.sampled(every=14)
@pytest.mark.parametrize(
    ("name", "threads"), [*((name, 1) for name in TEXTS), *((name, 2) for name in SHARED)]
)
def test_generated_code_computes_the_nest(name: str, threads: int) -> None:
    prim = primitive_of(name, threads)
    exact = Arrays.of(prim.problem, seed=1)
    x, w, bias, residual, clamp = exact.inputs.values()
    wp = prim.pack_weights(w)
    assert exact.fault("plain", prim(x, wp)) is None, prim.schedule
    fused = prim(x, wp, bias=bias, residual=residual, clamp=tuple(map(float, clamp)))
    assert exact.fault("fused", fused) is None, prim.schedule


def test_messages_name_what_the_nest_says() -> None:
    prim = primitive_of("matmul", 1)
    x, w = (np.zeros(shape, np.float32) for shape in (prim.problem.x_shape, prim.problem.w_shape))
    wp = prim.pack_weights(w)
    with pytest.raises(ValueError, match=r"x: expected shape \(37, 23\) \(A\[i\]\[k\]\), got \(0,"):
        prim(x[:0], wp)
    with pytest.raises(ValueError, match=r"w: expected shape \(23, 50\) \(B\[k\]\[j\]\), got \(50"):
        prim.pack_weights(w.T)
    with pytest.raises(ValueError, match=r"bias: expected shape \(50,\) \(j\), got \(37,\)"):
        prim(x, wp, bias=x[:, 0].copy())


CONVOLUTIONS = [
    Conv2d(N=1, C=20, H=9, W=9, K=33, R=3, S=3, pad=1, layout="nchw"),
    Conv2d(N=2, C=24, H=7, W=8, K=32, R=3, S=2, stride=2, pad=(1, 0), groups=2, layout="nchw"),
    Conv2d(N=1, C=18, H=7, W=7, K=18, R=3, S=3, dilation=2, pad=2, groups=18, layout="nchw"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
def test_a_convolution_and_its_nest_get_the_same_code(problem: Conv2d) -> None:
    same = Nest(textbook_c(problem))
    assert model_of(same)[1:] == model_of(problem)[1:]
    plan = choices(samples.fixed_context(problem), 1)[0].schedule
    assert choices(samples.fixed_context(same), 1)[0].schedule == plan
    assert emit(same, plan).file == emit(problem, plan).file


@pytest.mark.exhaustive
def test_a_file_to_a_primitive_and_a_record(tmp_path: Path) -> None:
    path = tmp_path / "product.c"
    path.write_text(TEXTS["transposed B"])
    wisdom = Wisdom(tmp_path / "wisdom.sqlite")
    prim = polysci.compile(polysci.Nest(path), "measure", wisdom=wisdom)
    x, w = np.ones((37, 23), np.float32), np.ones((50, 23), np.float32)
    assert np.array_equal(prim(x, prim.pack_weights(w)), np.full((37, 50), 23, np.float32))
    line = str(prim.problem.with_(name="another"))
    known = polysci.compile(line, "wisdom-only", wisdom=wisdom)
    assert known.schedule == prim.schedule and known.problem.name == "another"
    with pytest.raises(SpecError, match="layout: the problem has '', got 'nhwc' beside it"):
        polysci.compile(prim.problem, layout="nhwc")


def test_what_no_schedule_fits_is_refused() -> None:
    text = c_text(*MATMUL, "C[i][j] += A[i][k - 3] * B[k][j];", "k - 3 >= 0")
    with pytest.raises(UnsupportedError, match=r"^no schedule fits C\[i\]\[j\] \+= .*: cannot cut"):
        optimize(Nest(text), "estimate")


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_one_loop_around_a_transposed_factor_packs_it(threads: int) -> None:
    """Rows of products: vectors run along i, in which A advances by a row."""
    nest = Nest.parse("nest O[21]+=A[21][6]*B[6][21] for i:21 k:6 : O[i] A[i][k] B[k][i]")
    run = polysci.compile(nest, "estimate", threads)
    x = np.arange(21 * 6, dtype=np.float32).reshape(21, 6)
    w = np.ones((6, 21), np.float32)
    assert np.array_equal(run(x, run.pack_weights(w)), x.sum(axis=1))


def exported() -> list[ExportedLayer]:
    names = ("matmul", "transposed result", "batch", "one channel", "filter turned", "depthwise")
    made = [planned(name, "portable", 1) for name in (*names, "outer product", "backwards")]
    made.append(planned("groups", "portable", 2))
    return [
        ExportedLayer(problem, plan, 1 + (problem.name == "groups")) for problem, plan, _ in made
    ]


def run(*cmd: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, cmd)), cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_the_exported_c_tests_itself(tmp_path: Path) -> None:
    out = tmp_path / "nests"
    export_c(exported(), out)
    flags = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    run("gcc", *flags, "nests.c", "selftest.c", "-o", "selftest", "-lm", cwd=out)
    assert run(out / "selftest", cwd=out) == "18 passed, 0 failed\n"
    header = (out / "nests.h").read_text()
    assert "y, residual  f32  50 x 37 (C[j][i]), strides 37 1" in header
    assert "bias         f32  50 (j), strides 1" in header


@pytest.mark.exhaustive
def test_the_exported_package(tmp_path: Path) -> None:
    out = tmp_path / "nests"
    layers = exported()[1:2]
    export_python(layers, out)
    exact = Arrays.of(layers[0].problem, seed=2)
    np.savez(out / "arrays.npz", **exact.inputs, plain=exact.plain, fused=exact.fused)
    code = (
        "import numpy as np\nfrom nests import transposed_result as layer\n"
        "x, w, bias, residual, clamp, plain, fused = np.load('arrays.npz').values()\n"
        "packed = layer.pack_weights(w)\n"
        "assert (layer(x, packed) == plain).all()\n"
        "assert (layer(x, packed, bias, residual, tuple(clamp)) == fused).all()\n"
        "try: layer(x[:0], packed)\nexcept ValueError as error: print(layer, error)\n"
    )
    said = run(sys.executable, "-c", code, cwd=out)
    assert "layer 'transposed result': x f32 (37, 23), w f32 (23, 50), y f32 (50, 37)>" in said
    assert "x: expected shape (37, 23), got (0, 23)" in said


def test_an_explanation() -> None:
    problem = nest("two batches")
    text = render(explain(problem.name, model_of(problem)[0], samples.fixed_context(problem)))
    assert "S0[b, h, i, j, d] -> Q[b, i, h, d]" in text and "batch" in text


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return commands.polysci(*arguments, POLYSCI_ISA="portable")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("C[i][j] += A[i][k * k] * B[k][j];", ["square.c:6:19: ", "k * k", "are affine"]),
        ("C[i][j] += A[i][k] + B[k][j];", ["square.c: line 6: ", "not a product of two"]),
        ("{ C[i][j] = 0; C[i][j] += A[i][k] * B[k][j]; }", ["square.c: ", "found 2"]),
    ],
)
def test_commands_refuse_a_file(tmp_path: Path, statement: str, said: Sequence[str]) -> None:
    path = tmp_path / "square.c"
    path.write_text(c_text(*MATMUL, statement))
    others = [["explain"], ["check"], ["export", "-o", str(tmp_path / "out")]]
    for words in (["optimize"], *(others if "k * k" in statement else [])):
        done = command(words[0], path, *words[1:])
        assert done.returncode in (1, 2) and not done.stdout
        assert all(part in done.stderr for part in said), done.stderr
        assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()
    lines = done.stderr.splitlines()
    if "are affine" in said[-1]:
        assert lines[1][lines[2].index("^") :].startswith("k * k")


@pytest.mark.exhaustive
def test_commands_take_a_file(tmp_path: Path) -> None:
    path = tmp_path / "product.c"
    path.write_text(TEXTS["transposed A"])
    found = command("optimize", path, "--level", "estimate")
    assert found.returncode == 0 and "product" in found.stdout, found.stderr
    told = command("explain", path)
    assert told.returncode == 0 and "A[k, i]" in told.stdout, told.stderr
    checked = command("check", path, DATA / "conv2d.c", "--level", "estimate", "--mode", "exact")
    assert checked.returncode == 0 and "2 passed, 0 failed" in checked.stdout, checked.stderr
    assert str(parse_problem(str(Nest(path).with_(name="")))) in checked.stdout
    written = command("export", path, "-o", tmp_path / "out", "--level", "estimate")
    assert written.returncode == 0 and (tmp_path / "out" / "out.c").exists(), written.stderr


def test_a_nest_has_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "product.c"
    path.write_text(TEXTS["matmul"])
    done = command("optimize", path, "--batch", "4")
    assert done.returncode == 2 and "N=4: only name and multiplicity" in done.stderr
