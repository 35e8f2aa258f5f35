"""The C host of a project whose code is of a device: it opens a driver, builds and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from polysci.export.files import MARK, fill_template
from polysci.export.layers import Entry, Project
from polysci.loop_ir.interface import Function, function
from polysci.loop_ir.nodes import Constant
from polysci.network.code import Code
from polysci.printers.c_values import parameter, text
from polysci.printers.interface import KEEP_FLAG, declare
from polysci.printers.launch_code import (
    device_functions,
    kernel_rows,
    launch_call,
    launch_function,
    launching,
    number_lines,
    parameter_lines,
    string_lines,
)
from polysci.printers.launches import kernels_in, read_launches, read_network
from polysci.printers.network import RunEntry, size_constants, weights_source
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.cuda import Cuda
from polysci.runtime.backends.opencl import options_of
from polysci.runtime.source import assemble

# What the host of a language says of its driver; {} is the name of the project.
_WORDS: Final = {
    "opencl": {
        "LANGUAGE": "OpenCL", "PREFIX": "cl", "LOADER_TITLE": "loader of OpenCL",
        "QUEUE": "_cl_command_queue", "QUEUE_TITLE": "cl_command_queue", "MEMORY": "_cl_mem",
        "MEMORY_TITLE": "a cl_mem", "BUILDS": "the driver compiles the kernels",
        "TEXT_FILE": "{}.cl", "OPENCL": "yes",
    },
    "cuda": {
        "LANGUAGE": "CUDA", "PREFIX": "cu", "LOADER_TITLE": "driver of CUDA",
        "QUEUE": "CUstream_st", "QUEUE_TITLE": "CUstream", "MEMORY": "{}_bytes",
        "MEMORY_TITLE": "a CUdeviceptr as a pointer", "BUILDS": "the driver loads the kernels",
        "TEXT_FILE": "PTX of {}.cu", "CUDA": "yes",
    },
}  # fmt: skip
FLUSHED: Final = (
    "The driver may take\n * numbers below 2^-126 (denormals) for 0, which moves a sum of n "
    "products by no more than\n * 2^-126 * (2 n + sum of |x| + sum of |w|)."
)
KEPT: Final = "Denormal numbers are kept."


def device_values(backend: str, name: str) -> dict[str, str]:
    """Return what templates say of the device that a project's code is of."""
    words = {key: word.format(name) for key, word in _WORDS[_kind(backend)].items()}
    own = backend_named(backend)
    architecture = own.architecture if isinstance(own, Cuda) else ""
    return {"OPENCL": "", "CUDA": "", "DEVICE": "yes", **words, "ARCHITECTURE": architecture}


def _kind(backend: str) -> str:
    return backend.partition(":")[0]


def host_texts(
    code: str, backend: str, values: Mapping[str, str], *, flush: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the kernels' files, and what other files need of them, by template value.

    DEVICE_TEXT are declarations for a header, HOST the C that opens the device and launches
    kernels. ``flush``: denormals may count as 0.
    """
    name, launched = values["NAME"], read_launches(code).values()
    values = {**values, **device_values(backend, name)}
    kernels = f"/* {name}: kernels. {MARK}. What launches them is {name}.c. */\n{kernels_in(code)}"
    kind = _kind(backend)
    files, words = _KERNEL_FILES[kind](name, kernels, backend, flush)
    launches = "\n".join(launching(it, f"{name}_device") for it in launched if it.parameters)
    values = {**values, **words, "LAUNCHES": launches.rstrip()}
    values["API"] = fill_template(f"{kind}_api.h", values)
    values["CALLS"] = fill_template(f"{kind}_calls.c", values)
    return files, {
        **values,
        "DEVICE_TEXT": fill_template("device.h", values).rstrip(),
        "HOST": fill_template("device_host.c", values, kernel_rows(launched)),
        "DENORMALS": FLUSHED if flush else KEPT,
    }


def _opencl_files(
    name: str, kernels: str, backend: str, flush: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the text, and the same as C strings; the options with which a driver compiles it."""
    files = {f"{name}.cl": kernels, f"{name}_kernels.h": string_lines(kernels)}
    return files, {"OPTIONS": " ".join(options_of(kernels, flush=flush))}


def _cuda_files(
    name: str, kernels: str, backend: str, flush: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the text, and what it compiles to: PTX as C strings, machine code as numbers."""
    device, flags = backend_named(backend), () if flush else (KEEP_FLAG,)
    assert isinstance(device, Cuda)
    ptx = f"// {name}: kernels. {MARK}.\n{device.ptx(kernels, flags)}"
    binary = device.binary(kernels, flags)
    files = {
        f"{name}.cu": kernels, f"{name}_kernels.h": string_lines(ptx),
        f"{name}_binary.h": f"/* {name}: machine code. {MARK}. */\n{number_lines(binary)}",
    }  # fmt: skip
    return files, {}


_KERNEL_FILES: Final = {"opencl": _opencl_files, "cuda": _cuda_files}


def layer_files(whole: Project, values: Mapping[str, str]) -> dict[str, str]:
    """Return header, host and kernels of layers."""
    name, (unit,) = whole.name, whole.units
    files, values = host_texts(assemble(unit.sources), whole.backend, {**values, "NETWORK": ""})
    rows = [_layer_row(whole, entry) for entry in whole.entries]
    layers = fill_template("device_layers.c", values, {"LAYERS": rows}).rstrip()
    code = {"INCLUDE": f"{name}.h", "CODE": f"{values['HOST']}\n{layers}"}
    return {
        f"{name}.h": fill_template("device_layers.h", values),
        f"{name}.c": fill_template("layers.c", {**values, **code}),
        **files,
    }


def _layer_row(whole: Project, entry: Entry) -> dict[str, str]:
    """Return what the host says of a layer."""
    types, problem = entry.precision, entry.layer.problem
    channels = problem.y_shape[problem.bias_axis]
    declared = {row.role: row for row in layer_functions(whole, entry)}
    launch = launch_function(function("run", types), whole.name)
    parameters = {
        "PACK": declared["pack_weights"], "RUN": declared["run"], "LAUNCH": launch,
    }  # fmt: skip
    copied = f"\n    own.to = copy_scales(device, to, {channels});"
    return {
        "LAYER": entry.symbol, "CODE": entry.code, "BIAS_SIZE": str(types.sum.bytes * channels),
        "ZERO": ", x_zero" * types.integer, "TO": " to," * types.scaled,
        "OWN_TO": " own.to," * types.scaled, "COPY_TO": copied * types.scaled,
        **{f"{key}_PARAMETERS": parameter_lines(map(parameter, row.parameters))
           for key, row in parameters.items()},
    }  # fmt: skip


def layer_functions(whole: Project, entry: Entry) -> tuple[Function, ...]:
    """Return the functions of a layer as its project offers them."""
    return device_functions(entry.functions, whole.name) if whole.on_device else entry.functions


def declare_launch(whole: Project, entry: Entry) -> str:
    """Return the prototype of what launches a layer; of a layer in C there is none."""
    if not whole.on_device:
        return ""
    run = launch_function(function("run", entry.precision), whole.name)
    return declare([run], f"{entry.symbol}_launch")


def network_files(code: Code, entries: Sequence[RunEntry], *, flush: bool) -> dict[str, str]:
    """Return header, host and kernels of a network; ``flush``: denormals may count as 0.

    ``entries`` are those of its programs.
    """
    name, program, kind = code.name, code.placed.program, _kind(code.backend)
    (kernels,) = code.files.values()
    memory, rows = read_network(kernels), _argument_rows(entries, name)
    inputs, outputs = rows[: len(program.arguments)], rows[len(program.arguments) :]
    # What a run replaces it also reads.
    replaced = [row for row, its in zip(outputs, program.outputs, strict=True)
                if its in program.in_place]  # fmt: skip
    raw = [str(its.array.nbytes) for its in code.weights_file.parts[len(memory.constants) :]]
    sizes = {
        "CONTEXT": memory.arena + sum(map(max, zip(*map(_bytes, entries), strict=True))),
        "MODEL": memory.constants_size + memory.packed_size + 4 * len(memory.literals),
    }
    own = ["context->arena", "model->constants", "model->packed", "model->literals"]
    places = [f"context->{row['PLACE']}" for row in rows]
    calls = [launch_call(f"{entry.symbol}_run", [*own, *places]) for entry in entries]
    values = {
        **code.values,
        **_run_values(entries, name),
        "SIZES": size_constants(entries, name, sizes),
        "INPUT_COUNT": str(max(1, len(inputs))),
        "OUTPUT_COUNT": str(max(1, len(outputs))),
        "LITERALS": parameter_lines([*map(_literal, memory.literals), "{0}"]),
        "SOURCE": weights_source(code.values),
        "NETWORK": "yes",
        "GRAPHS": "yes" * (kind == "cuda"),
    }
    files, values = host_texts(kernels, code.backend, values, flush=flush)
    tables = {
        "PARTS": [{"AT": str(at), "BYTES": str(size)} for at, size in memory.constants],
        "LAYERS": [{"BYTES": size, "PACK": function}
                   for size, function in zip(raw, memory.packed_by, strict=True)],
        "CALLS": [{"AT": str(at), "CALL": call} for at, call in enumerate(calls)],
        "INPUTS": inputs, "OUTPUTS": outputs, "COPIED": [*inputs, *replaced],
    }  # fmt: skip
    return {
        f"{name}.h": fill_template("device_network.h", values),
        f"{name}.c": fill_template("device_network.c", values, tables),
        **files,
    }


def _argument_rows(entries: Sequence[RunEntry], name: str) -> list[dict[str, str]]:
    """Return what the host says of inputs, then outputs: names, bytes of a run and of a context."""
    rows, count = list[dict[str, str]](), {"x": 0, "y": 0}
    for at, argument in enumerate(entries[0].arguments):
        letter, word = argument.word[0], argument.word
        kind, number = {"x": "in", "y": "out"}[letter], str(count[letter])
        size = room = f"{name}_{word}_SIZE".upper()
        if entries[0].sizes:
            size, room = f"bytes[entry][{at}]", str(max(own[at] for own in map(_bytes, entries)))
        rows.append({"AT": number, "PLACE": f"{kind}[{number}]", "ARGUMENT": word,
                     "SIZE": size, "ROOM": room})  # fmt: skip
        count[letter] += 1
    return rows


def _literal(number: float) -> str:
    """Return a number of 32 bits as C has it in memory."""
    return f"{{.whole = {number}}}" if isinstance(number, int) else f"{{{text(Constant(number))}}}"


def _bytes(entry: RunEntry) -> list[int]:
    """Return the bytes of each argument of an entry."""
    return [own.sizes()[f"{own.word.upper()}_SIZE"] for own in entry.arguments]


def _run_values(entries: Sequence[RunEntry], name: str) -> dict[str, str]:
    """Return what templates say of the functions that run a network on a device."""
    first, context = entries[0], f"{name}_context *context"
    parameters = ", ".join([context, *(own.parameter for own in first.arguments)])
    values = {"ENTRY_COUNT": str(len(entries)), "SEVERAL": "yes" * bool(first.sizes), "TABLE": ""}
    if not first.sizes:
        head = f"int {name}_run({parameters})"
        run = {"RUN_HEAD": head, "RUN_DECLARED": f"{head};", "ENTRIES": "", "ENTRY": "0"}
        return {**values, **run}
    words = [own.word for own in first.arguments]
    heads = [f"int {entry.symbol}_run({parameters})" for entry in entries]
    bodies = [f"{head}\n{{\n    return run_entry({', '.join(['context', str(at), *words])});\n}}\n"
              for at, head in enumerate(heads)]  # fmt: skip
    sizes = (f"int64_t {word}" for word in first.sizes)
    dispatcher = f"int {name}_run({', '.join([context, *sizes, parameters.partition(', ')[2]])})"
    chosen = "".join(
        f"    if ({entry.condition})\n        return {entry.symbol}_run("
        f"{', '.join(['context', *words])});\n" for entry in entries
    )  # fmt: skip
    bodies.append(f"{dispatcher}\n{{\n{chosen}    return {name.upper()}_NO_SIZE;\n}}\n")
    counts = ["{" + ", ".join(map(str, _bytes(entry))) + "}" for entry in entries]
    return {
        **values,
        "TABLE": ", ".join(counts),
        "ARGUMENT_COUNT": str(len(words)),
        "RUN_HEAD": f"static int run_entry({parameters.replace(context, f'{context}, int entry')})",
        "RUN_DECLARED": "\n".join([*(f"{head};" for head in heads), f"{dispatcher};"]),
        "ENTRIES": "\n" + "\n".join(bodies).rstrip(),
        "ENTRY": "entry",
    }
