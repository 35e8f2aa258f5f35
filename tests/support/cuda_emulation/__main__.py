"""Check a layer: SANITIZER LAYER LAYOUT [OLD NEW], where NEW stands for OLD in the code."""

import sys

from polysci.ops import parse_problem
from tests.support.cuda_emulation import check_layer, emulated

sanitizer, text, layout, *fault = sys.argv[1:]
with emulated(sanitizer=sanitizer, fault=(fault[0], fault[1]) if fault else ("", "")) as backend:
    check_layer(parse_problem(text, layout), backend)
print("exact")
