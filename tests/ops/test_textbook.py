"""The textbook nest of every operator: its Scop, compiled, and run by the interpreter."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import islpy as isl
import numpy as np
import pytest

from polysci.loop_ir.interpreter import Interpreter
from polysci.loop_ir.memory import InterpretedMemory, MemoryFaultError, Pointer
from polysci.loop_ir.nodes import LoopModule
from polysci.ops import OPS, parse_problem
from polysci.ops.model import scop_of
from polysci.ops.problem import Problem
from polysci.polyhedral.extract import extract
from polysci.polyhedral.scop import Scop
from tests.support.nests import textbook_c

CONVOLUTIONS = [
    "conv1d mb1ic3iw7oc4kw3pw1",
    "mb2ic2ih5iw6oc3kh3kw2sh2ph1pw0",
    "g2mb1ic4ih5oc6kh3ph1dh1",
    "mb1ic3ih4oc5kh1",
    "mb2ic4ih6iw7oc6kh3kw2sh3sw3ph7pw7",
    "mb2ic4ih6iw7oc6oh9ow3kh3kw2ph1pw1",
    "mb2ic4ih6iw7oc6oh1ow2kh3kw2sh2sw2ph0pw0",
    "g6mb2ic6ih6iw7oc6kh3kw2sh2sw2ph1pw1",
    "mb2ic4ih6iw7oc6kh6kw7ph0pw0",
    "conv3d mb1ic2id3ih4iw3oc2kd2kh3kw1ph1sd2",
    "bwd_d mb1ic3ih5oc4kh3ph1",
    "bwd_d mb1ic3ih6oc4kh3ph1sh2",
    "bwd_d g2mb1ic4ih5oc4kh3ph1dh1",
    "bwd_d conv1d mb1ic3iw7oc4kw3pw1",
    "bwd_w mb2ic3ih5oc4kh3ph1",
    "bwd_w g2mb1ic4ih6oc4kh3ph1sh2",
    "bwd_w conv3d mb1ic2id3oc2kd2pd1",
    "deconv mb1ic3ih4oc2oh8kh4sh2ph1",
]
PRODUCTS = [
    "mm:5x7x6",
    "mm:3:5x7x6 tb b=constant",
    "mm:5x7x6 ta to a=constant",
    "linear:4x6x5",
    "nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]",
    "nest O[9][4]+=I[9]*W[4][5] for p:9 k:4 r:5 : O[p][k] I[p+r-2] W[k][4-r]",
]
TEXTS = [*CONVOLUTIONS, *PRODUCTS]
PROBLEMS = [parse_problem(text, "nchw") for text in CONVOLUTIONS]
PROBLEMS += map(parse_problem, PRODUCTS)


def test_every_operator_is_here() -> None:
    kinds = {row.problem for row in OPS.values()}
    assert all(any(isinstance(problem, kind) for problem in PROBLEMS) for kind in kinds)


def facts(scop: Scop) -> dict[str, Any]:
    """Return all of a Scop but the text of its statement and its line."""
    (own,) = scop.statements
    accesses = [(access.array, access.kind, access.map) for access in own.accesses]
    factors = [access.map for access in own.factors]
    return {
        "arrays": scop.arrays, "domain": own.domain, "box": own.box, "schedule": own.schedule,
        "accesses": accesses, "factors": factors, "reduction": own.reduction,
        "name": own.name, "iterators": own.iterators,
    }  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_scop_is_that_of_the_printed_nest(problem: Problem) -> None:
    ours, theirs = (facts(scop) for scop in (scop_of(problem.nest()), extract(textbook_c(problem))))
    for name, own in ours.items():
        other = theirs[name]
        same = own.is_equal(other) if isinstance(own, isl.Set | isl.Map) else own == other
        assert same, f"{name}: {own} is not {other}"


def arrays_of(problem: Problem) -> dict[str, np.ndarray]:
    """Return the arrays of a nest, whole numbers in the factors and zeros in the result."""
    rng = np.random.default_rng(3)
    result, *factors = problem.nest().parameters
    arrays = {result.name: np.zeros(result.shape, np.float32)}
    for factor in factors:
        arrays[factor.name] = rng.integers(-4, 5, factor.shape).astype(np.float32)
    return arrays


def interpret(problem: Problem, arrays: dict[str, np.ndarray]) -> None:
    """Run the nest in the interpreter."""
    nest, single = problem.nest(), np.dtype(np.float32)
    arguments = {
        name: Pointer(InterpretedMemory.of(name, a), 0, single) for name, a in arrays.items()
    }
    Interpreter(LoopModule((nest,))).run(nest, arguments)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return all nests compiled, every warning an error."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    folder: Path = tmp_path_factory.mktemp("textbook")
    source, path = folder / "nests.c", folder / "nests.so"
    source.write_text("".join(textbook_c(one, f"nest{at}") for at, one in enumerate(PROBLEMS)))
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    flags = ["-std=c11", "-O1", *warnings, "-shared", "-fPIC", "-o"]
    subprocess.run([compiler, *flags, str(path), str(source)], check=True, timeout=60)
    return ctypes.CDLL(str(path))


@pytest.mark.sampled
@pytest.mark.parametrize("at", range(len(PROBLEMS)), ids=TEXTS)
def test_interpreted_compiled_and_by_numpy(at: int, library: ctypes.CDLL) -> None:
    problem = PROBLEMS[at]
    arrays = arrays_of(problem)
    result = next(iter(arrays))
    compiled = {name: array.copy() for name, array in arrays.items()}
    interpret(problem, arrays)
    getattr(library, f"nest{at}")(*(ctypes.c_void_p(a.ctypes.data) for a in compiled.values()))
    np.testing.assert_array_equal(arrays[result], compiled[result])
    _, first, second = arrays.values()
    x, w = (first, second) if first.shape == problem.x_shape else (second, first)
    np.testing.assert_array_equal(arrays[result], problem.reference(x, w))


def test_a_subscript_outside_its_array_is_a_fault() -> None:
    problem = parse_problem("mm:5x7x6")
    arrays = arrays_of(problem)
    arrays["A"] = arrays["A"][:3].copy()  # of 5 rows of 7
    with pytest.raises(MemoryFaultError, match="A: element 21 lies outside"):
        interpret(problem, arrays)
