"""Scripts as ``python -W error SCRIPT words`` runs them, inside this process.

Python 3.14t warns where it turns on the GIL for a module, as islpy: that is no error.
"""

import contextlib
import io
import runpy
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

GIL = "The global interpreter lock"
STRICT = ("-W", "error", "-W", f"ignore:{GIL}:RuntimeWarning")


def run_script(
    path: Path, *words: object, env: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """What a script prints and returns; a second or two less than in a process of its own.

    Modules that it imports from its own folder are forgotten afterwards.
    """
    out, err, command = io.StringIO(), io.StringIO(), [str(path), *map(str, words)]
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", GIL, RuntimeWarning)
        stack.callback(_forget, path.parent, frozenset(sys.modules))
        status = _status(path)
    return CompletedProcess(command, status, out.getvalue(), err.getvalue())


def _status(path: Path) -> int:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _forget(folder: Path, known: frozenset[str]) -> None:
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent == folder:
            del sys.modules[name]
