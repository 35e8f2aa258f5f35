"""C as OpenCL C: functions and headers with the address spaces of a device.

A pointer to numbers points to the device's memory, unless a header of OpenCL's own says otherwise:
sums and vectors of a work-item are arrays of other types.
"""

from __future__ import annotations

import re
from typing import Final

_POINTER: Final = re.compile(
    r"\b(ps_a|ps_b|ps_x|ps_y|ps_bias|float|double|void|char|u?int\d+_t|polysci_scales) \*"
)
_FENCE: Final = re.compile(r'__asm__ volatile\(""[^)]*\);')
_PRAGMA: Final = re.compile(r"^ *(#pragma omp|#include) .*\n", re.MULTILINE)
_TABLE: Final = re.compile(r"^static const\b", re.MULTILINE)
_STATIC: Final = re.compile(r"^(\s+)static const\b", re.MULTILINE)
_ACTIVATION: Final = re.compile(r"typedef void \(\*ps_activation\)\([^)]*\);")
_CALL: Final = ("activation(x, count)", "PS_CALL(activation, x, count)")
_RESERVED: Final = re.compile(r"\b(local|global|private|constant|kernel|half)\b")  # as names in C


def translate(text: str) -> str:
    """Return C as OpenCL C: pointers to numbers are to the device's memory, compilers unfenced."""
    text = _ACTIVATION.sub("typedef int ps_activation;", _STATIC.sub(r"\1const", text))
    text = _TABLE.sub("__constant", _PRAGMA.sub("", text.replace(*_CALL)))
    return _FENCE.sub(";", _POINTER.sub(r"__global \1 *", _RESERVED.sub(r"\1_", text)))
