"""Layers to export, with hostile names, and a way to run what comes of them."""

import os
import subprocess
from pathlib import Path

from polysci import schedule
from polysci.export import Layer
from polysci.ops.conv2d import Conv2d
from polysci.target import ISAS

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


def layers(isa: str) -> list[Layer]:
    """Stem, groups, depthwise, split reduction, and one shape three times; odd channel counts."""
    v = ISAS[isa].lanes_f32
    stem = Conv2d(N=1, C=3, H=9, W=11, K=v + 4, R=3, S=3, stride=2, pad=1, name="res2a-1")
    grouped = Conv2d(
        N=2, C=10, H=6, W=7, K=6, R=3, S=2, pad=1, groups=2, layout="nchw", name="res2a_1"
    )
    depthwise = Conv2d(N=1, C=v + 3, H=7, W=5, K=v + 3, R=3, S=3, pad=1, groups=v + 3)
    split = Conv2d(N=1, C=12, H=8, W=6, K=v, R=2, S=3, dilation=2, pad=(0, 2), P=4, name="class")
    one = Conv2d(N=1, C=5, H=4, W=6, K=v - 1, R=1, S=1, name=HOSTILE)
    made = [
        (stem, f"pack(A)+2 k:{v} p > brgemm_{isa}_f32_6x{v}", 1),
        (grouped, f"n* g* p q:4 > brgemm_{isa}_f32_4x{max(v, 8)}", 2),
        (depthwise, f"g:{v} p > depthwise_{isa}_f32_5x{v}", 1),
        (split, f"p pack(A) c:4 q:3 > brgemm_{isa}_f32_3x{v}", 1),
        (one, f"p > brgemm_{isa}_f32_6x{v}", 1),
        (one.with_(name="卷积"), f"p > brgemm_{isa}_f32_6x{v}", 1),
        (one.with_(name="res2a_1_workspace_size"), f"p > brgemm_{isa}_f32_6x{v}", 1),
    ]
    return [Layer(problem, schedule.parse(text), threads) for problem, text, threads in made]


def run(*cmd: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A program's end and words; never a terminal, never the tests' own make or pip options."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "PYTHON", "PIP"))}
    return subprocess.run(
        [str(word) for word in cmd],
        cwd=cwd, env=clean | env, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
