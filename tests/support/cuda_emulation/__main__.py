"""Check a layer: SANITIZER LAYER LAYOUT [OLD NEW | TYPES SCHEDULE], NEW for OLD in the code."""

import sys

from polysci.ops import parse_problem
from polysci.space.schedule import parse
from tests.support.cuda_emulation import check_layer, check_schedule, emulated

sanitizer, text, layout, *rest = sys.argv[1:]
of_schedule = len(rest) == 2 and " > " in rest[1]
fault = ("", "") if of_schedule or not rest else (rest[0], rest[1])
with emulated(sanitizer=sanitizer, fault=fault) as backend:
    if of_schedule:
        check_schedule(parse_problem(text, layout, rest[0]), parse(rest[1]), backend)
    else:
        check_layer(parse_problem(text, layout), backend)
print("exact")
