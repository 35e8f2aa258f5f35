"""Export a small network as portable C, build it with strict warnings, and run it.

``python examples/microcontroller/build.py [DIR]`` writes to DIR (default: a temporary folder). On a
real target, replace ``cc`` by the target's cross compiler.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from polysci.cli import main as polysci

LAYERS = ('mb1ic8ih8oc16kh3ph1n"conv1"', 'mb1ic16ih8oc8kh1n"conv2"')
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")


def export(folder: Path) -> None:
    """net.c and net.h: C11 without intrinsics, heap, threads or state."""
    options = ("--isa", "portable", "--level", "estimate", "--name", "net", "--force")
    status = polysci(["export", *LAYERS, *options, "-o", str(folder)])
    if status:
        sys.exit(status)


def build(folder: Path) -> Path:
    """The program of main.c and the exported layers."""
    shutil.copy(Path(__file__).parent / "main.c", folder)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, *FLAGS, "main.c", "net.c", "-o", "demo"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "demo"


def run(folder: Path) -> None:
    """Export, build and run; fails where one of them does."""
    export(folder)
    subprocess.run([build(folder)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            run(Path(temporary))
