"""Check a layer under sanitizers: LAYER LAYOUT [TYPES SCHEDULE]."""

import sys

from polysci.ops import parse_problem
from polysci.space.schedule import parse
from tests.support.cuda_emulation import check_layer, check_schedule, emulated

text, layout, *rest = sys.argv[1:]
with emulated(sanitized=True) as backend:
    if rest:
        dtype, run = rest
        check_schedule(parse_problem(text, layout, dtype), parse(run), backend)
    else:
        check_layer(parse_problem(text, layout), backend)
print("exact")
