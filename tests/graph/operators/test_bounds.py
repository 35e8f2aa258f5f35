"""Places that are data never lead outside of a tensor: the sanitizers watch, whatever they are."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.network.code import Code
from tests.printers.test_sanitized import SANITIZED
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node

SHAPES = {"x": [2, 3, 4, 5], "flat": [6, 4], "grid": [2, 3, 3, 2], "rois": [2, 4], "boxes": [2, 5]}
PLACES = {"at": [2, 3, 4, 5], "few": [2], "vectors": [3, 4], "rows": [3, 4]}
POOLED = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
NODES = (
    node("Gather", "x few", "y0", axis=2), node("GatherElements", "x at", "y1", axis=3),
    node("GatherND", "x vectors", "y2"), node("ScatterElements", "x at x", "y3", axis=1),
    node("ScatterElements", "x at x", "y4", axis=2, reduction="add"),
    node("ScatterND", "x vectors u", "y5", reduction="max"),
    node("MaxUnpool", "x at", "y6", kernel_shape=[2, 2], strides=[2, 2]),
    node("ReverseSequence", "flat four", "y7", time_axis=0, batch_axis=1),
    node("OneHot", "few depth values", "y8"),
    node("GridSample", "x grid", "y9", mode="cubic", padding_mode="border"),
    node("GridSample", "x grid", "y10", mode="linear", padding_mode="reflection"),
    node("RoiAlign", "x rois few", "y11", **POOLED), node("MaxRoiPool", "x boxes", "y12",
                                                         pooled_shape=[2, 2]),
    node("TopK", "x k", "y13 y14", axis=1),
)  # fmt: skip
CONSTANTS = {"depth": np.array(3), "values": np.float32([0, 1]), "k": np.array([2]),
             "four": np.array([2**60, -5, 3, 0]), "u": np.float32([1, 2, 3])}  # fmt: skip
MAIN = """
#include <math.h>
#include <stdlib.h>
#include "small.h"
int main(int argc, char **argv)
{
    static const float wild[] = {0, NAN, 1e30f, -1e30f, 2, INFINITY, -INFINITY, -0.7f, 3};
    static const int64_t far[] = {0, INT64_MIN, INT64_MAX, -1, 7, 1, -100, 2, INT64_MIN + 1};
    const char *why = 0;
    small_model *model = small_load(argv[argc - 1], &why);
    small_context *context = small_new(model);
@BODY@
    small_free(context), small_unload(model);
    return 0;
}
"""


def wild_model() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    inputs += [info(name, TensorProto.INT64, shape) for name, shape in PLACES.items()]
    outputs = [helper.make_empty_tensor_value_info(f"y{at}") for at in range(15)]
    weights = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph(NODES, "wild", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def main_of(code: Code) -> str:
    """Runs the network on buffers as large as they must be, from three places of the tables on."""
    program, lines, names = code.placed.program, [], []
    for at, name in enumerate((*program.inputs, *program.outputs)):
        value = program.values[name]
        lines.append(f"void *b{at} = malloc({max(1, value.bytes)});")
        if name in program.inputs:
            kind, table = ("float", "wild") if value.dtype == "float32" else ("int64_t", "far")
            lines.append(f"for (int i = 0; i < {value.size}; ++i)")
            lines.append(f"    (({kind} *)b{at})[i] = {table}[(i + i / 9) % 9];")
        names.append(f"b{at}")
    lines.append(f"small_run(context, {', '.join(names)});")
    lines += [f"free({name});" for name in names]
    return MAIN.replace("@BODY@", "\n".join(lines))


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["portable"])
def test_no_place_leads_outside(isa: str, tmp_path: Path) -> None:
    code = network_of(read(wild_model()), isa=isa).code
    for name, text in {**code.files, "main.c": main_of(code)}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "weights").write_bytes(b"".join(code.weights_file.pieces()))
    sources = [str(path) for path in sorted(tmp_path.glob("*.c"))]
    words = ["gcc", "-std=c11", *SANITIZED, "-o", tmp_path / "run", *sources, "-lm"]
    subprocess.run(words, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "run", tmp_path / "weights"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[:2000]
