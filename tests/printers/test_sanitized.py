"""Generated loops and layers under the address and undefined-behaviour sanitizers."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.loop_ir.functions import neutral
from polysci.network.code import Code
from polysci.numerics.scalar_functions import FUNCTIONS, LETTERS
from polysci.printers.c_values import c_type, number
from polysci.printers.network import headers_for
from polysci.target.isas import ISAS
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas")
SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "small.h"
int main(int argc, char **argv)
{
    const char *why = 0;
    small_model *model = small_load(argv[argc - 1], &why);
    small_context *context = model ? small_new(model) : 0;
    if (!context)
        return puts(why), 1;
    float *x = calloc(X, sizeof(float)), *y0 = malloc(Y0), *y1 = malloc(Y1), *y2 = malloc(Y2);
    for (int i = 0; i < X; ++i)
        x[i] = (float)(i % 7);
    small_run(context, x, y0, y1, y2);
    small_free(context), small_unload(model);
    free(x), free(y0), free(y1), free(y2);
    return 0;
}
"""


def every_form() -> onnx.ModelProto:
    """Plain loops, columns and scalars of reductions, guards, tables, views, joins, layers."""
    ints = {"a": np.array([5]), "z": np.array([-9]), "at": np.array([3]), "step": np.array([-2])}
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1], strides=[2, 1]), node("Relu", "c", "r"),
        node("Conv", "x v", "d", group=5, pads=[2, 0, 0, 2]), node("Tanh", "x", "t"),
        node("MaxPool", "t", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Concat", "r m", "j", axis=1), node("Slice", "j a z at step", "s"),
        node("Pad", "s pads", "p", mode="reflect"), node("LRN", "p", "l", size=3),
        node("Resize", "l - twice", "u", mode="linear"), node("ReduceMean", "u", "y0", axes=[1]),
        node("Softmax", "d", "y1", axis=3), node("ConvTranspose", "r up", "y2", strides=[2, 3]),
    ]  # fmt: skip
    weights = {"w": reals(7, 5, 3, 3), "v": reals(5, 1, 3, 3), "up": reals(7, 3, 2, 4),
               "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
               "twice": np.float32([1, 1, 2, 1.5]), **ints}  # fmt: skip
    return model(nodes, {"x": [1, 5, 7, 6]}, dict.fromkeys(("y0", "y1", "y2")), weights)


def run(code: Code, folder: Path, files: dict[str, str], wide: int = 0) -> str:
    """What an executable of the C, its buffers as large as they must be, has to say."""
    values, program = code.placed.program.values, code.placed.program
    sizes = {f"Y{at}": values[n].bytes - wide for at, n in enumerate(program.outputs)}
    sizes["X"] = values[program.inputs[0]].size
    for name, text in {**files, "main.c": MAIN}.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "weights").write_bytes(b"".join(code.weights_file.pieces()))
    defined = [f"-D{name}={size}" for name, size in sizes.items()]
    sources = [str(path) for path in sorted(folder.glob("*.c"))]
    subprocess.run(["gcc", "-std=c11", *SANITIZED, *defined, "-o", folder / "run", *sources, "-lm"],
                   check=True, capture_output=True)  # fmt: skip
    done = subprocess.run([folder / "run", folder / "weights"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.exhaustive
def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    code = network_of(read(every_form())).code
    assert not run(code, tmp_path, dict(code.files))


@pytest.mark.exhaustive
def test_steps_keep_to_their_slices(tmp_path: Path) -> None:
    weights = {"w": reals(2, 20, 3), "r": reals(2, 20, 5), "b": reals(2, 40),
               "n": np.int32([4, 2, 3])}  # fmt: skip
    nodes = [node("LSTM", "x w r b n", "y0 y1 y2", hidden_size=5, direction="bidirectional")]
    code = network_of(read(model(nodes, {"x": [4, 3, 3]}, dict.fromkeys(("y0", "y1", "y2")),
                                 weights))).code  # fmt: skip
    assert not run(code, tmp_path, dict(code.files))


@pytest.mark.exhaustive
def test_the_sanitizers_notice_what_is_out_of_bounds(tmp_path: Path) -> None:
    code = network_of(read(every_form())).code
    assert "heap-buffer-overflow" in run(code, tmp_path, dict(code.files), wide=4)


@pytest.mark.parametrize("kind", LETTERS)
def test_every_function_is_c(kind: str, tmp_path: Path) -> None:
    """With as many arguments as its text takes, and the first value of every reduction."""
    lines = ["#include <math.h>", "#include <stdint.h>"]
    texts = {name: row.template(kind) for name, row in FUNCTIONS.items()}
    first = {f"first_{n}": number(neutral(n, kind), kind) for n in ("add", "mul", "max", "min")}
    names, own = {**texts, **first}, c_type(kind)
    for name, text in names.items():
        if text is None:
            continue
        body = text.format("x", "y", "z")
        head = f"{own} f_{name}({own} x, {own} y, {own} z)"
        lines += [f"{head};", head]
        lines.append(f"{{ (void)x, (void)y, (void)z; return {body}; }}")
    source = tmp_path / "functions.c"
    text = "\n".join(lines)
    source.write_text(f"{headers_for(ISAS['portable'], text)}\n{text}\n", encoding="utf-8")
    words = ["gcc", *STRICT, "-c", "-o", tmp_path / "functions.o", source]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    assert {row.result for row in FUNCTIONS.values()} == {"", *LETTERS}
