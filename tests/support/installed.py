"""Packages as an installer leaves them, and processes that have them on their path."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install(site: Path, name: str, entry_points: str, files: Mapping[str, str]) -> None:
    """Put package ``name``, version 1.0, with these entry points and files into ``site``."""
    told = site / f"{name}-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(entry_points)
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def run_with(site: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``python WORDS`` where the packages of ``site`` are installed."""
    paths = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=240, check=False,
        cwd=site, env=os.environ | paths | env,
    )  # fmt: skip
