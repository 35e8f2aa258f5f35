"""Loops that are tuned for a CPU contain the small functions that they use: a call ends vectors."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from polysci.printers.network import headers_for, tuning_values
from polysci.runtime.build.compiler import default_flags
from polysci.target.isas import ISAS

TUNED = [name for name, isa in ISAS.items() if isa.tuning]
LOOPS = {
    "bf16": "y[i] = ps_bf16_of(2 * ps_bf16_value(x[i]))",
    "f16": "y[i] = ps_f16_of(2 * ps_f16_value(x[i]))",
    "places": "y[ps_least(i, ps_ceil_div(n, 2))] = x[ps_most(0, ps_floor_div(i - 1, 2))]",
}


def test_some_instruction_sets_are_tuned() -> None:
    assert TUNED and not tuning_values(ISAS["portable"])["TUNED"]


@pytest.mark.sampled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the assembly of x86-64")
@pytest.mark.skipif(not shutil.which("gcc"), reason="GCC alone is told")
@pytest.mark.parametrize("isa", TUNED)
@pytest.mark.parametrize("loop", LOOPS)
def test_small_functions_are_no_calls(loop: str, isa: str, tmp_path: Path) -> None:
    attribute = f"__attribute__((noipa{tuning_values(ISAS[isa])['TUNED']}))"
    head = f"PS_KERNEL {attribute} void loop(uint16_t *restrict y, const uint16_t *x, int64_t n)"
    simd = "#pragma omp simd\n    for (int64_t i = 0; i < n; ++i)"
    code = f"{head};\n{head}\n{{\n{simd}\n        {LOOPS[loop]};\n}}\n"
    source = tmp_path / "loop.c"
    source.write_text(f"{headers_for(ISAS[isa], code)}\n{code}", encoding="utf-8")
    flags = [flag for flag in default_flags() if not flag.startswith(("-fopenmp", "-Wl"))]
    words = ["gcc", *flags, "-fopenmp-simd", "-S", "-o", "-", source]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    body = text.split("\nloop:")[1].split(".size\tloop")[0]
    assert not re.search(r"\scallq?\s", body)
