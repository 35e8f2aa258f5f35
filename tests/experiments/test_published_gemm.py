"""The experiment on published GEMMs, with a table whose speeds are made up."""

import csv
from itertools import product
from pathlib import Path

import pytest

from tests.support.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "experiments" / "published_gemm.py"
HEAD = ["M", "N", "K", "tiles", "parallel_loop", "gflops"]
HEAD += [f"{level}_bytes" for level in ("l1", "l2", "l3", "mem")]


def write(path: Path, sizes: list[tuple[int, int, int]]) -> Path:
    """Variants that are the faster the larger a register tile is, and that differ in nothing else
    but cache blocks."""
    lines = [HEAD]
    for m, n, k in sizes:
        for block, (rows, wide), steps in product((32, 128), ((1, 16), (4, 32)), (1, 4)):
            tiles = f"{block}-{block}-128-32-32-64-{rows}-{wide}-{steps}"
            speed = 100.0 + rows * wide + block / 64
            lines.append([str(x) for x in (m, n, k, tiles, "jt2", speed, 100, 200, 300, block)])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    return path


@pytest.mark.exhaustive
def test_a_choice_of_register_tile_is_that_of_the_larger_one(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    table = write(tmp_path / "table.csv", [(512, 3584, 512), (256, 7168, 1024), (1024, 3584, 256)])
    run = run_script(SCRIPT, table, "--output", tmp_path)
    assert run.returncode == 0, run.stderr
    with (tmp_path / "published_gemm_summary.csv").open(encoding="utf-8") as file:
        rows = {(row["question"], row["ranker"]): row for row in csv.DictReader(file)}
    assert float(rows["all", "traffic"]["top1"]) > 0.98
    assert float(rows["all", "fitted"]["top1"]) > 0.98
    assert float(rows["all", "tournament"]["top1"]) > 0.98
    assert 0.5 < float(rows["all", "median"]["top1"]) < 0.98
    # The published cost counts bytes, of which large blocks have more: it takes small ones.
    assert float(rows["tilings", "polydl"]["top1"]) < 1.0
    with (tmp_path / "published_gemm.csv").open(encoding="utf-8") as file:
        variants = {(row["question"], row["variants"]) for row in csv.DictReader(file)}
    assert variants == {("all", "8"), ("tilings", "2")}
    assert (tmp_path / "published_gemm.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M,N,K\n1,2,3\n", "expected a table"),
        (",".join(HEAD) + "\n", "0 GEMMs in it, three at least"),
        (",".join(HEAD) + "\n8,8,8,1-2-3,it2,5,1,1,1,1\n", "nine positive sizes"),
        (",".join(HEAD) + "\n8,8,8,1-1-1-1-1-1-1-1-1,kt2,5,1,1,1,1\n", "it2 or jt2"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    run = run_script(SCRIPT, tmp_path / "table.csv", "--output", tmp_path)
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    run = run_script(SCRIPT, tmp_path / "none.csv", "--output", tmp_path)
    assert (run.returncode, "no such file" in run.stderr) == (2, True)
