"""Check a layer: SANITIZER LAYER LAYOUT [TYPES SCHEDULE] [OLD NEW], NEW for OLD in the code.

Or a row fusion: SANITIZER fused CASE [OLD NEW].
"""

import sys

import pytest

from polysci.ops import parse_problem
from polysci.space.schedule import parse
from tests.support.cuda_emulation import (
    ORDERS,
    EmulatedCuda,
    check_layer,
    check_schedule,
    emulated,
)
from tests.support.fusion_cases import check, fused
from tests.support.rates import fuse_rows_everywhere


def check_fused(case: str, backend: EmulatedCuda) -> None:
    """Run a case of row fusions, in every order of threads."""
    (target,) = backend.targets()
    with pytest.MonkeyPatch.context() as patch:
        fuse_rows_everywhere(patch)
        network = fused(case, target, 2)
    for order in ORDERS:
        backend.emulated.order = order
        check(case, network)


sanitizer, text, layout, *rest = sys.argv[1:]
of_schedule = len(rest) > 1 and " > " in rest[1]
faults = rest[2:] if of_schedule else rest
fault = (faults[0], faults[1]) if faults else ("", "")
with emulated(sanitizer=sanitizer, fault=fault) as backend:
    if text == "fused":
        check_fused(layout, backend)
    elif of_schedule:
        check_schedule(parse_problem(text, layout, rest[0]), parse(rest[1]), backend)
    else:
        check_layer(parse_problem(text, layout), backend)
print("exact")
