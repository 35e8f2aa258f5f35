"""A driver of OpenCL that compiles: ``python -m polysci.runtime.backends.opencl_service``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polysci.errors import BuildError
from polysci.runtime.backends.opencl import compile_here
from polysci.runtime.worker_process import serve


class Driver:
    """The operations of the process."""

    def compile(
        self, number: int, text: str, binary: str, options: Sequence[str]
    ) -> dict[str, Any]:
        """Compile the file ``text`` for a device and write ``binary``; or say why not."""
        try:
            code = compile_here(number, Path(text).read_text(encoding="utf-8"), options)
        except BuildError as error:
            return {"refusal": str(error)}
        Path(binary).write_bytes(code)
        return {}


if __name__ == "__main__":
    serve(Driver(), ("compile",))
