"""Layers to export, with hostile names, and a way to run what comes of them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from polysci.export import ExportedLayer
from polysci.numerics.dtypes import COMPUTES, PRECISIONS, Precision
from polysci.ops.convolutions import Conv2d
from polysci.space import schedule
from polysci.space.schedule import Schedule
from polysci.target import microkernels
from polysci.target.isas import ISAS
from polysci.target.microkernels import Microkernel

# Of exported code, which others compile with their own flags.
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Werror")
HOSTILE = '*/ #error "\\ ../../etc/passwd %s {0} @NAME@ \\'
IDENTIFIERS = [
    "res2a_1_2",
    "res2a_1",
    "layer_3",
    "layer_class",
    "error_etc_passwd_s_0_NAME",
    "layer_6",
    "res2a_1_workspace_size_2",
]


def layers(isa: str, *others: str, dtype: str = "f32") -> list[ExportedLayer]:
    """Stem, groups, depthwise, split reduction, and one shape three times; odd channel counts.

    Scheduled for one instruction set, or for several, the best first.
    """
    v = ISAS[isa].lanes_f32
    stem = Conv2d(N=1, C=3, H=9, W=11, K=v + 4, R=3, S=3, stride=2, pad=1, name="res2a-1")
    grouped = Conv2d(
        N=2, C=10, H=6, W=7, K=6, R=3, S=2, pad=1, groups=2, layout="nchw", name="res2a_1"
    )
    depthwise = Conv2d(N=1, C=v + 3, H=7, W=5, K=v + 3, R=3, S=3, pad=1, groups=v + 3)
    split = Conv2d(N=1, C=12, H=8, W=6, K=v, R=2, S=3, dilation=2, pad=(0, 2), P=4, name="class")
    one = Conv2d(N=1, C=5, H=4, W=6, K=v - 1, R=1, S=1, name=HOSTILE)
    c = "c:4 " if PRECISIONS[dtype].split else ""  # else y cannot hold what a call leaves off
    made = [
        (stem, "pack(A)+2 k:{v} p > {brgemm}_6x{v}", 1),
        (grouped, "n* g* {pack}p q:4 > {brgemm}_4x{wide}", 2),
        (depthwise, "g:{v} p > {depthwise}_5x{v}", 1),
        (split, "{k}p pack(A) " + c + "q:3 > {brgemm}_3x{v}", 1),
        (one, "{k}p > {brgemm}_6x{v}", 1),
        (one.with_(name="卷积"), "{k}p > {brgemm}_6x{v}", 1),
        (one.with_(name="res2a_1_workspace_size"), "{k}p > {brgemm}_6x{v}", 1),
    ]
    return [
        ExportedLayer(problem.with_(dtype=dtype), plans[0], threads, tuple(plans[1:]))
        for problem, text, threads in made
        if (plans := [_plan(text, each, isa, PRECISIONS[dtype]) for each in (isa, *others)])
    ]


def _plan(text: str, isa: str, best: str, precision: Precision) -> Schedule:
    """The same plan with narrower vectors cuts the columns."""
    v = ISAS[isa].lanes_f32
    cut = "" if v == ISAS[best].lanes_f32 else f"k:{v} "
    found = {name: _kernel(name, isa, precision) for name in ("brgemm", "depthwise")}
    pack = "pack(A) " * (COMPUTES[found["brgemm"].compute].vnni_factor > 1)  # of neighbours along c
    kernels = {name: f"{name}_{one.isa}_{one.compute}" for name, one in found.items()}
    return schedule.parse(text.format(v=v, wide=max(v, 8), k=cut, pack=pack, **kernels))


def _kernel(family: str, isa: str, precision: Precision) -> Microkernel:
    """A kernel that an instruction set has, or inherits, for inputs of this type."""
    return microkernels.ways(family, isa, precision.x.name)[0][0]


def run(*cmd: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A program's end and words; never a terminal, never the tests' own make or pip options."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "PYTHON", "PIP"))}
    return subprocess.run(
        [str(word) for word in cmd],
        cwd=cwd, env=clean | env, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def cmake_built(source: Path, build: Path, *options: str) -> None:
    """Configure and build a project without one warning."""
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    done = run("cmake", "-S", source, "-B", build, *generator, *options, cwd=source)
    assert done.returncode == 0 and "CMake Warning" not in done.stdout, done.stdout
    done = run("cmake", "--build", build, cwd=source)
    assert done.returncode == 0 and "warning" not in done.stdout, done.stdout


def cmake_installed(build: Path, prefix: Path) -> set[str]:
    """Install what was built; return the files that are under ``prefix`` then."""
    done = run("cmake", "--install", build, "--prefix", prefix, cwd=build)
    assert done.returncode == 0, done.stdout
    return files_in(prefix)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def all_passed(words: str, least: int) -> bool:
    """Whether a self-test did so many checks, and more where weights were packed ahead."""
    said = re.search(r"\b(\d+) passed, 0 failed", words)
    return said is not None and int(said[1]) >= least


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def run_usage(folder: Path, name: str, scratch: Path, *libraries: str) -> str:
    """Return what the usage prints that the header of a built network shows."""
    header = (folder / f"{name}.h").read_text()
    lines = re.findall(r"^ \*     (.*)$", header.partition(" * Tensors")[0], re.MULTILINE)
    assert len(lines) > 8
    head = ["#include <stdio.h>", f'#include "{name}.h"', "int main(void)", "{"]
    (scratch / "usage.c").write_text("\n".join([*head, *lines, "return 0;", "}", ""]))
    words = ["-std=c11", *WARNINGS, f"-I{folder}"]
    files = [scratch / "usage.c", folder / f"lib{name}.a"]
    program = scratch / "usage"
    done = run("gcc", *words, *files, "-lm", *libraries, "-o", program, cwd=folder)
    assert done.returncode == 0, done.stdout
    done = run(program, cwd=folder)
    assert done.returncode == 0, done.stdout
    return done.stdout


def numbers_of(project: Path, main: str) -> list[list[int]]:
    """Return the whole numbers, line by line, that a program prints with a network of ``lm``."""
    (project / "generate.c").write_text(main)
    files = ["generate.c", *sorted(path.name for path in project.glob("lm*.c"))]
    words = ["-std=c11", "-O1", *WARNINGS, "-Wno-unknown-pragmas"]
    built = run("gcc", *words, "-o", "generate", *files, "-lm", cwd=project)
    assert built.returncode == 0, built.stdout
    ran = run("./generate", cwd=project)
    assert ran.returncode == 0, (ran.returncode, ran.stdout)
    return [[int(word) for word in line.split()] for line in ran.stdout.splitlines()]
