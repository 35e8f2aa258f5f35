"""Fast CPU primitives: polyhedral outer loops around hand-written microkernels."""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polysci import errors, extract
    from polysci.api import compile
    from polysci.dtype import PRECISIONS, from_bf16, to_bf16
    from polysci.network.compiled import Network, compile_network
    from polysci.ops import parse_problem
    from polysci.ops.conv2d import Conv2d
    from polysci.ops.nest import Nest
    from polysci.primitive import Primitive
    from polysci.scales import Scales
    from polysci.schedule import Schedule
    from polysci.target import Target, detect
    from polysci.tune import Result, optimize
    from polysci.wisdom import Wisdom

__all__ = [
    "PRECISIONS",
    "Conv2d",
    "Nest",
    "Network",
    "Primitive",
    "Result",
    "Scales",
    "Schedule",
    "Target",
    "Wisdom",
    "compile",
    "compile_network",
    "detect",
    "errors",
    "extract",
    "from_bf16",
    "optimize",
    "parse_problem",
    "to_bf16",
]

# Imported on first use (PEP 562): NumPy, islpy and cgen together take half a second.
_HOMES = MappingProxyType(
    {
        "PRECISIONS": "polysci.dtype",
        "Conv2d": "polysci.ops.conv2d",
        "Nest": "polysci.ops.nest",
        "Network": "polysci.network.compiled",
        "Primitive": "polysci.primitive",
        "Result": "polysci.tune",
        "Scales": "polysci.scales",
        "Schedule": "polysci.schedule",
        "Target": "polysci.target",
        "Wisdom": "polysci.wisdom",
        "compile": "polysci.api",
        "compile_network": "polysci.network.compiled",
        "detect": "polysci.target",
        "from_bf16": "polysci.dtype",
        "optimize": "polysci.tune",
        "parse_problem": "polysci.ops",
        "to_bf16": "polysci.dtype",
    }
)
_MODULES = ("errors", "extract")

if not TYPE_CHECKING:  # a checker would take any attribute for granted

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"polysci.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'polysci' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
