"""The C host of a project whose code is of a device: it opens OpenCL, builds and launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polysci.export.files import MARK, fill_template
from polysci.export.layers import Entry, Project
from polysci.loop_ir.interface import Function, function
from polysci.loop_ir.nodes import Constant
from polysci.network.code import Code, arguments_of
from polysci.printers.c_values import text
from polysci.printers.interface import declare
from polysci.printers.launch_code import (
    device_functions,
    kernel_rows,
    launch_call,
    launch_function,
    launching,
    string_lines,
)
from polysci.printers.launches import kernels_in, read_launches, read_network
from polysci.printers.network import RunArgument, RunEntry, size_constants, weights_source
from polysci.runtime.backends.opencl import FLUSH, OPTIONS
from polysci.runtime.source import assemble

FLUSHED: Final = (
    "The driver may take\n * numbers below 2^-126 (denormals) for 0, which moves a sum of n "
    "products by no more than\n * 2^-126 * (2 n + sum of |x| + sum of |w|)."
)
KEPT: Final = "Denormal numbers are kept."


def host_texts(code: str, values: Mapping[str, str], *, flush: bool = True) -> dict[str, str]:
    """Return what a project of a device's code needs, by template value.

    DEVICE are declarations for its header, HOST the C that opens the device and launches kernels,
    KERNELS_CL the kernels, KERNELS_H the same as C strings. ``flush``: denormals may count as 0.
    """
    name, launched = values["NAME"], read_launches(code).values()
    kernels = f"/* {name}: kernels. {MARK}. What launches them is {name}.c. */\n{kernels_in(code)}"
    options = " ".join([*OPTIONS, *[FLUSH] * flush])
    launches = "\n".join(launching(it, f"{name}_device") for it in launched if it.parameters)
    filled = {**values, "OPTIONS": options, "LAUNCHES": launches.rstrip()}
    return {
        "DEVICE": fill_template("opencl.h", values).rstrip(),
        "HOST": fill_template("opencl.c", filled, kernel_rows(launched)),
        "KERNELS_CL": kernels,
        "KERNELS_H": string_lines(kernels),
        "DENORMALS": FLUSHED if flush else KEPT,
    }


def layer_files(whole: Project, values: Mapping[str, str]) -> dict[str, str]:
    """Return header, host and kernels of layers."""
    name, (unit,) = whole.name, whole.units
    texts = host_texts(assemble(unit.sources), values)
    rows = [
        {"LAYER": entry.symbol, "CODE": entry.code, "BIAS_SIZE": str(_bias_bytes(entry))}
        for entry in whole.entries
    ]
    layers = fill_template("opencl_layers.c", values, {"LAYERS": rows}).rstrip()
    code = {"INCLUDE": f"{name}.h", "CODE": f"{texts['HOST']}\n{layers}"}
    return {
        f"{name}.h": fill_template("opencl_layers.h", {**values, **texts}),
        f"{name}.c": fill_template("layers.c", {**values, **code}),
        f"{name}.cl": texts["KERNELS_CL"],
        f"{name}_kernels.h": texts["KERNELS_H"],
    }


def _bias_bytes(entry: Entry) -> int:
    problem = entry.layer.problem
    return entry.precision.sum.bytes * problem.y_shape[problem.bias_axis]


def layer_functions(whole: Project, entry: Entry) -> tuple[Function, ...]:
    """Return the functions of a layer as its project offers them."""
    return device_functions(entry.functions, whole.name) if whole.on_device else entry.functions


def declare_launch(whole: Project, entry: Entry) -> str:
    """Return the prototype of what launches a layer; of a layer in C there is none."""
    if not whole.on_device:
        return ""
    run = launch_function(function("run", entry.precision), whole.name)
    return declare([run], f"{entry.symbol}_launch")


def network_files(code: Code, *, flush: bool) -> dict[str, str]:
    """Return header, host and kernels of a network; ``flush``: denormals may count as 0."""
    name, program = code.name, code.placed.program
    kernels = code.files[f"{name}.cl"]
    memory, arguments = read_network(kernels), arguments_of(program)
    inputs = [_argument_row("in", at, it) for at, it in enumerate(arguments[: memory.inputs])]
    outputs = [_argument_row("out", at, it) for at, it in enumerate(arguments[memory.inputs :])]
    # What a run replaces it also reads.
    replaced = [row for row, its in zip(outputs, program.outputs, strict=True)
                if its in program.in_place]  # fmt: skip
    raw = [str(array.nbytes) for _, array in code.weights_file.parts[len(memory.constants) :]]
    sizes = {
        "CONTEXT": memory.arena + sum(_bytes(argument) for argument in arguments),
        "MODEL": memory.constants_size + memory.packed_size + 4 * len(memory.literals),
    }
    own = ["context->arena", "model->constants", "model->packed", "model->literals"]
    places = [f"context->{row['PLACE']}" for row in (*inputs, *outputs)]
    values = {
        **code.values,
        "SIZES": size_constants([RunEntry(name, arguments)], name, sizes),
        "INPUT_COUNT": str(max(1, len(inputs))),
        "OUTPUT_COUNT": str(max(1, len(outputs))),
        "LITERALS": "".join(f"{text(Constant(it))}, " for it in memory.literals),
        "CALL": launch_call(f"{name}_run", [*own, *places]),
        "SOURCE": weights_source(code.values),
    }
    values |= host_texts(kernels, values, flush=flush)
    rows = {
        "PARTS": [{"AT": str(at), "BYTES": str(size)} for at, size in memory.constants],
        "LAYERS": [{"BYTES": size, "PACK": function}
                   for size, function in zip(raw, memory.packed_by, strict=True)],
        "INPUTS": inputs, "OUTPUTS": outputs, "COPIED": [*inputs, *replaced],
    }  # fmt: skip
    return {
        f"{name}.h": fill_template("opencl_network.h", values),
        f"{name}.c": fill_template("opencl_network.c", values, rows),
        f"{name}.cl": values["KERNELS_CL"],
        f"{name}_kernels.h": values["KERNELS_H"],
    }


def _argument_row(kind: str, at: int, argument: RunArgument) -> dict[str, str]:
    word = argument.word
    return {"AT": str(at), "PLACE": f"{kind}[{at}]", "ARGUMENT": word, "WORD": word.upper()}


def _bytes(argument: RunArgument) -> int:
    return argument.sizes()[f"{argument.word.upper()}_SIZE"]
