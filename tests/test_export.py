"""What is exported works without polysci: C under both compilers, a Python package with NumPy."""

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci import export, schedule
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.exact import Arrays
from polysci.export import Layer, names
from polysci.ops.conv2d import Conv2d
from polysci.target import ISAS, detect

STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
CXX = [cxx for cxx in ("g++", "clang++") if shutil.which(cxx)]
BEST = detect().runnable[-1].name
HOSTILE = '*/ #error "\\ ../../etc/passwd %s {0} @NAME@ \\'


def layers(isa: str) -> list[Layer]:
    """Stem, groups, depthwise, split reduction, and one shape three times; odd channel counts."""
    lanes = ISAS[isa].lanes_f32

    def made(problem: Conv2d, loops: str, kernel: str, threads: int = 1) -> Layer:
        text = f"{loops.format(v=lanes)} > {kernel.format(isa=isa, v=lanes)}"
        return Layer(problem, schedule.parse(text), threads)

    stem = Conv2d(N=1, C=3, H=9, W=11, K=lanes + 4, R=3, S=3, stride=2, pad=1, name="res2a-1")
    grouped = Conv2d(
        N=2, C=10, H=6, W=7, K=6, R=3, S=2, pad=1, groups=2, layout="nchw", name="res2a_1"
    )
    depthwise = Conv2d(N=1, C=lanes + 3, H=7, W=5, K=lanes + 3, R=3, S=3, pad=1, groups=lanes + 3)
    split = Conv2d(N=1, C=12, H=8, W=6, K=lanes, R=2, S=3, dilation=2, pad=(0, 2), P=4, name="class")
    one = Conv2d(N=1, C=5, H=4, W=6, K=7, R=1, S=1, name=HOSTILE)
    return [
        made(stem, "pack(A)+2 k:{v} p", "brgemm_{isa}_f32_6x{v}"),
        made(grouped, "n* g* p", "brgemm_{isa}_f32_8x8" if lanes < 8 else "brgemm_{isa}_f32_8x{v}", 2)
        if False
        else made(grouped, "n* g* p q:4", _wide(isa), 2),
        made(depthwise.with_(name=""), "g:{v} p", "depthwise_{isa}_f32_5x{v}"),
        made(split, "p c:4 pack(A) q:3", "brgemm_{isa}_f32_3x{v}"),
        made(one, "p", _wide6(isa)),
        made(one.with_(name="卷积"), "p", _wide6(isa)),
        made(one.with_(name="res2a_1_workspace_size"), "p", _wide6(isa)),
    ]
