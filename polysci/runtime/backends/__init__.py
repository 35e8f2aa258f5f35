"""The table of backends, one row a kind of device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from polysci.errors import UnsupportedError
from polysci.runtime.backend import Backend
from polysci.runtime.backends import cuda, opencl
from polysci.runtime.backends.cuda import Cuda
from polysci.runtime.backends.host import Host
from polysci.runtime.backends.opencl import OpenCL
from polysci.target.target import HOST, Target

BACKENDS: Mapping[str, Backend] = MappingProxyType({HOST: Host()})


def backend_named(name: str) -> Backend:
    """Return the row of a name. Raises UnsupportedError if there is none."""
    kind, _, number = name.partition(":")
    if kind == opencl.PREFIX and (number or "0").isdecimal():
        return OpenCL(int(number or 0))
    if kind == cuda.PREFIX and re.fullmatch(r"\d*|sm_\d+", number):
        return Cuda(number or "0")
    if name not in BACKENDS:
        known = ", ".join([*BACKENDS, "opencl:0 and so on", "cuda:0 and so on", "cuda:sm_80"])
        raise UnsupportedError(f"no backend {name!r}; known: {known}")
    return BACKENDS[name]


def device_named(name: str) -> Target | None:
    """Return the device of a name; None for the CPU that runs this. Raises UnsupportedError."""
    if name == HOST:
        return None
    (target,) = backend_named(name).targets()
    return target


def backend_of(target: Target) -> Backend:
    """Return the backend of a device. Raises UnsupportedError if there is none."""
    return backend_named(target.backend)
