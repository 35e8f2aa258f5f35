"""The panel that a call prefetches is the one that the nest reads next, in every nest."""

import re
import subprocess
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from polysci.numerics.arrays import round_up
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build.compiler import find_compiler
from polysci.space.schedule import parse
from polysci.tune import emit

CONV = Conv2d(N=2, C=40, H=6, W=6, K=88, R=1, S=1)
GROUPS = Conv2d(N=1, C=64, H=6, W=6, K=128, R=3, S=3, groups=2)
# Every call prints where it starts in packed B, its number and the distance of the next panel.
RECORD = """
#include <stdint.h>
#include <stdio.h>
#define ps_least(a, b) ((a) < (b) ? (a) : (b))
#define ps_floor_div(a, b) ((a) / (b))
static void show(const int64_t *numbers, int count)
{
    printf("%d %d %d\\n", (int)numbers[1], (int)numbers[count - 2], (int)numbers[count - 1]);
}
#define SHOW(...) show((int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / 8)
"""


def recorded_calls(problem: Conv2d, text: str, folder: Path) -> list[tuple[int, int, int]]:
    """(start in packed B, number, distance) of every call, as the generated loops make them."""
    source = emit(problem, parse(f"{text} ahead(B) > brgemm_avx512_f32_6x16"))
    loops = source.text.split("*g = &args;")[1].split("    ps_restore_mode")[0]
    loops = re.sub(rf"{source.symbol}_t\d+\(g, ", "SHOW(", loops)
    (folder / "record.c").write_text(f"{RECORD}int main(void)\n{{\n{loops}    return 0;\n}}\n")
    program = folder / "record"
    subprocess.run([*find_compiler().cmd, "-o", program, folder / "record.c"], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [tuple(map(int, line.split())) for line in lines.splitlines()]  # type: ignore[misc]


def packed_size(problem: Conv2d, text: str) -> int:
    """Bytes of packed weights, in whole cache lines."""
    return round_up(emit(problem, parse(f"{text} ahead(B) > brgemm_avx512_f32_6x16")).packed)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (CONV, "n k:16 p"),
        (CONV, "k:16 n p:4 p"),
        (CONV, "n k:64 p:3 k:16 p"),
        (CONV, "k:32 c:16 k:16 n p"),
        (CONV, "c:16 n k:16 p"),
        (CONV, "n k:16 c:8 p"),
        (CONV, "n p k:16"),
        (GROUPS, "g k:16 p"),
        (GROUPS, "k:32 g p:2 k:16 p"),
    ],
)
def test_calls_prefetch_what_comes_next(problem: Conv2d, text: str, tmp_path: Path) -> None:
    calls = recorded_calls(problem, text, tmp_path)
    visits = [list(visit) for _, visit in groupby(calls, key=lambda call: call[0])]
    assert len(visits) > 3
    for visit in visits:
        numbers = [number for _, number, _ in visit]
        assert numbers == sorted(set(numbers)) and numbers[0] == 0
        assert len({distance for _, _, distance in visit}) == 1
    for (here, _, distance), (following, _, _) in pairwise(visit[0] for visit in visits):
        assert distance and here + distance == following
    start, _, distance = visits[-1][0]  # behind the last panel: the weights of the layer after it
    assert 4 * (start + distance) == packed_size(problem, text)
