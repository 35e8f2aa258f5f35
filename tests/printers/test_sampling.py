"""The C that chooses a token, beside Python's."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.network.generation import sample
from polysci.printers import generation
from polysci.text import templates
from tests.support.exported import WARNINGS, run

COUNT = 500
BEFORE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef struct lm_context lm_context;
int64_t lm_sample(const float *results, double temperature, int64_t top_k, double uniform);
int64_t lm_next(lm_context *context, const int64_t *tokens, int64_t count, double temperature,
                int64_t top_k, double uniform);
static int read_tokens(lm_context *context, const int64_t *tokens, int64_t count,
                       const float **last)
{
    static const float none[500];
    *last = context || !tokens ? none : 0;
    return (int)count;
}
"""
SHARES = [(0.0, 0), (1.0, 0), (0.7, 40), (2.0, 1), (1e-30, 5), (3.0, COUNT - 1), (1.0, COUNT + 1)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("sampling")
    values = {"NAME": "lm", "RESULTS": str(COUNT), "TOKEN": "int64_t"}
    path = Path(generation.__file__).with_name("templates") / "sample.c"
    (folder / "sample.c").write_text(BEFORE + templates.fill(path, values))
    words = ["-std=c11", "-O2", "-shared", "-fPIC", *WARNINGS]
    built = run("gcc", *words, "-o", "sample.so", "sample.c", "-lm", cwd=folder)
    assert built.returncode == 0, built.stdout
    return ctypes.CDLL(str(folder / "sample.so"))


@pytest.mark.parametrize(("temperature", "top_k"), SHARES)
def test_c_chooses_as_python_does(library: ctypes.CDLL, temperature: float, top_k: int) -> None:
    library.lm_sample.restype = ctypes.c_int64
    random = np.random.default_rng(2)
    results = random.standard_normal(COUNT).astype(np.float32)
    chosen = list[int]()
    for uniform in (0.0, *random.random(40), 1 - 2.0**-53):
        chosen.append(library.lm_sample(
            results.ctypes.data_as(ctypes.c_void_p), ctypes.c_double(temperature),
            ctypes.c_int64(top_k), ctypes.c_double(uniform),
        ))  # fmt: skip
        assert chosen[-1] == sample(results, temperature, top_k, uniform)
    best = np.argsort(-results)
    assert {*chosen} <= {*best[: top_k or COUNT]}
    assert temperature < 0.5 or top_k == 1 or len({*chosen}) > 5


def test_shares_are_those_of_the_softmax() -> None:
    """A token is chosen for as many random numbers as its share, of the best three alone."""
    results = np.array([2.0, -1.0, 1.0, 0.0], np.float32)
    shares = np.exp(np.array([2.0, 1.0, 0.0]) / 0.5)
    numbers = [sample(results, 0.5, 3, (at + 0.5) / 4000) for at in range(4000)]
    counts = np.bincount(numbers, minlength=4)[[0, 2, 3]] / 4000
    np.testing.assert_allclose(counts, shares / shares.sum(), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1), ("temperature", np.nan), ("top_k", -1), ("uniform", 1)]
)
def test_numbers_out_of_range(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"{name} {value}: expected a number from 0 to below"):
        sample(np.zeros(3, np.float32), **{name: value})  # type: ignore[arg-type]
