"""Layers -> a C project: one .c and one .h for all, or a .c an instruction set, and a self-test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from textwrap import wrap

from polysci import tune
from polysci.export.build_texts import build_values, wait_policy
from polysci.export.candidates import with_isas
from polysci.export.device_host import (
    declare_launch,
    device_values,
    layer_files,
    layer_functions,
)
from polysci.export.files import LAYER_PROJECT, fill_template, title
from polysci.export.layers import (
    Entry,
    Project,
    ProjectFile,
    TunedProblem,
    file_key,
    project,
)
from polysci.loop_ir.interface import Function, Role, function
from polysci.lower.algorithm import ExactInputs
from polysci.lower.registry import algorithm_of
from polysci.numerics.dtypes import Precision
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.printers.c_values import definition, parameter
from polysci.printers.interface import SCALES, declare, dispatch, finish, refuse
from polysci.printers.launch_code import device_functions
from polysci.runtime.source import assemble
from polysci.target.isas import ISAS, isa_named

_WIDTH = 98  # columns of a comment
_TYPES_TOLD = {
    "f32": "f32 is float",
    "bf16": "bf16 is the upper half of an f32 in a uint16_t",
    "f16": "f16 is IEEE 754's binary16 in a uint16_t",
    "u8": "u8 is uint8_t",
    "s8": "s8 is int8_t",
    "s32": "s32 is int32_t",
}
_ACTIVATION = [
    " * packed is w as it lies, at any multiple of the size of its elements: w changes from call",
    " * to call, and every call packs it in workspace. LAYER_pack_weights only copies w.",
]
_ORDER = (("m",), ("batch",), ("k", "br"), ("n",))
# Which processors have the intrinsics of a header: elsewhere it does not compile.
_PROCESSORS = {
    "immintrin.h": "defined(__x86_64__)",
    "cpuid.h": "defined(__x86_64__)",
    "arm_neon.h": "defined(__aarch64__)",
    "arm_sve.h": "defined(__aarch64__)",
    "wasm_simd128.h": "defined(__wasm_simd128__)",
    "riscv_vector.h": "defined(__riscv)",
    "arm_mve.h": "defined(__ARM_FEATURE_MVE)",
}


def export_c(
    results: Sequence[TunedProblem],
    out: Path,
    *,
    name: str | None = None,
    force: bool = False,
    isas: Sequence[str] = (),
    level: str = "measure",
) -> list[Path]:
    """Write a C project of ``results`` (``tune.Result`` or ``Layer``) into the directory ``out``.

    NAME.c, NAME.h, selftest.c, Makefile, CMakeLists.txt and README.md need nothing but a C
    compiler; the same layers give the same bytes. ``name`` (default: the directory's) begins all
    symbols and is made an identifier where it is none. Returns the paths written.

    ``isas`` are the instruction sets to hold code of, the results' own among them; for the others
    a schedule is searched at ``level``, or estimated where this machine does not run them. Code of
    several (also where a ``Layer`` has ``others``) goes into a NAME_ISA.c each; the functions of
    NAME.h then take, at run time, the best that the CPU has.

    Raises SpecError for no layers, ``isas`` that do not fit, or a directory that holds other files
    (unless ``force``, which replaces what has the same name and leaves the rest); PolysciError if
    ``out`` cannot be written; and what ``optimize`` raises.
    """
    if isas:  # before the search
        check_c(out, name=name, force=force, isas=isas)
        results = with_isas(results, isas, level)
    whole = project(results, title(out, name))
    return LAYER_PROJECT.write(out, whole.name, project_files(whole), force=force)


def check_c(
    out: Path, *, name: str | None = None, force: bool = False, isas: Sequence[str] = ()
) -> None:
    """Raise what ``export_c`` would find wrong with ``out``, before there are any results."""
    called = title(out, name)
    LAYER_PROJECT.check(out, called, force=force, more=_unit_patterns(called, isas))


def _unit_patterns(name: str, isas: Sequence[str]) -> list[str]:
    """Return patterns of the files beside NAME.c, before the units are known.

    Those depend on precisions and schedules; ``isas`` are the instruction sets chosen, or none.
    """
    chosen = [isa_named(isa, source="isas") for isa in isas] or list(ISAS.values())
    own = dict.fromkeys([*(link for isa in chosen for link in isa.chain), *isas, "portable"])
    return [f"{name}_units.h", *(f"{name}_{isa}{end}.c" for isa in own for end in ("", "_*"))]


def project_files(whole: Project) -> dict[str, str]:
    """Return the text of every file of the project."""
    values = _values(whole)
    sources = _code_files(whole, values)
    headers = sorted(path for path in sources if path.endswith(".h"))
    device = whole.on_device
    threads = 1 if device else whole.threads
    values |= build_values(sources, " ".join(headers), threads, loader=device)
    values |= _selftest_values(whole)
    if device:  # the README tells of C's layers or of a device's
        own = device_values(whole.backend, whole.name)
        values |= {**own, "DEVICE_LAYERS": "yes", "LAYERS": ""}
    return {**sources, **LAYER_PROJECT.fill(whole.name, values)}


def _code_files(whole: Project, values: dict[str, str]) -> dict[str, str]:
    """Return the text of all files of code but the self-test."""
    if whole.on_device:
        return layer_files(whole, {**values, "SUPPORTED": "devices_here() > 0"})
    header = {f"{whole.name}.h": fill_template("layers.h", values)}
    if whole.several:
        return _unit_files(whole, values) | header
    code = {
        "INCLUDE": f"{whole.name}.h",
        "CODE": "\n".join([assemble(whole.units[0].sources), *_forwards(whole)]),
        "SUPPORTED": "PS_CPU_OK() ? 1 : 0",
    }
    return {f"{whole.name}.c": fill_template("layers.c", values | code), **header}


def _values(whole: Project) -> dict[str, str]:
    """Return the values of templates that speak of layers, their types and their units."""
    name, example = whole.name, whole.entries[0]
    types = [entry.precision for entry in whole.entries]
    keys = ", ".join(unit.key for unit in whole.units)
    choice = any(map(_alternatives, whole.entries))
    cpus = f"these features: {whole.features}"
    holds = f"`{name}.c` holds everything"
    if whole.several:
        holds = f"the files `{name}_*.c` hold everything else"
    if choice:
        cpus, holds = f"one of these: {keys}", f"`{name}.c` chooses among the others"
    return {
        "NAME": name,
        "UPPER": name.upper(),
        "SIZE": whole.size,
        "TITLE": f"{whole.size} ({whole.precisions}) in C",
        "CPUS": cpus,
        "HOLDS": holds,
        "FILES": "all but selftest.c" if whole.several else "both files",
        "CODES": _codes(whole) * choice,
        "APART": "yes" * (whole.several and not choice),
        "EXAMPLE": example.symbol,
        "EXAMPLE_ZERO": ", x_zero" * example.precision.integer,
        "EXAMPLE_TO": " &to," * example.precision.scaled,
        "LAYERS": "\n".join(_document_layer(whole, entry) for entry in whole.entries),
        "WAITING": wait_policy(1 if whole.on_device else whole.threads, " * ", " * "),
        "PRECISIONS": whole.precisions,
        "ELEMENTS": "\n".join(wrap(
            "Arrays are contiguous, in the order, with the strides (in elements) and of the types "
            f"given below: {_types(whole)}.",
            _WIDTH, initial_indent=" * ", subsequent_indent=" * ",
        )),
        "ROUNDED": "yes" * any(row.y.name in ("bf16", "f16") for row in types),
        "WHOLE": "yes" * any(row.integer for row in types),
        "X_ZERO": _parameter(", x_zero", [row.integer for row in types]),
        "TO": _parameter(" to,", [row.scaled for row in types]),
        "SCALES": f"{SCALES}\n" * any(row.scaled for row in types),
    }  # fmt: skip


def _types(whole: Project) -> str:
    """Return the types of all arrays, and what they are in C."""
    rows = [entry.precision for entry in whole.entries]
    names = {t.name for row in rows for t in (row.x, row.w, row.y, row.sum)}
    return "; ".join(text for name, text in _TYPES_TOLD.items() if name in names)


def _parameter(text: str, takes: list[bool]) -> str:
    """Return a parameter that all layers take, or some, or none."""
    return (text if all(takes) else f"[{text}]") if any(takes) else ""


def _codes(whole: Project) -> str:
    """Return a line of the header for each unit: its key and the features that it needs."""
    width = max(len(unit.key) for unit in whole.units)
    return "\n".join(
        "\n".join(wrap(
            f"{unit.key:<{width}}   {unit.features}", _WIDTH,
            initial_indent=" *   ", subsequent_indent=f" *   {'':<{width}}   ",
        ))
        for unit in whole.units
    )  # fmt: skip


def _document_layer(whole: Project, entry: Entry) -> str:
    """Return comment and declarations of one layer."""
    problem, threads = entry.layer.problem, entry.layer.threads
    shared = "" if whole.on_device else f", {threads} thread{'s' * (threads > 1)}"
    axes, layout = problem.axes, f"{problem.layout.upper()}, " if problem.layout else ""
    label = f" ({entry.label})" if entry.label else ""
    types = entry.precision
    rows = [
        ("x", types.x, (problem.x_shape, axes["x"])),
        ("w", types.w, (problem.w_shape, axes["w"])),
        ("y, residual", types.y, (problem.y_shape, axes["y"])),
        ("bias", types.sum, ((problem.y_shape[problem.bias_axis],), axes["bias"])),
    ]
    lines = [
        f"/* {entry.identifier}{label}: {entry.words}",
        f" * {layout}{entry.precision}{shared}",
        *(f" *   {which:<12} {kind!s:<4} {_extents(*of)}" for which, kind, of in rows),
    ]
    lines += _ACTIVATION * (entry.activation and not whole.on_device)
    declared = declare(layer_functions(whole, entry), entry.symbol) + declare_launch(whole, entry)
    isa = f"const char *{entry.symbol}_isa(void);\n" * _alternatives(entry)
    return "\n".join(lines) + f" */\n{_sizes(entry)}{declared}{isa}"


def _sizes(entry: Entry) -> str:
    """Return a layer's constants in bytes; of memory of calls the most of any code it has."""
    problem, types = entry.layer.problem, entry.precision
    sizes = {
        "X": types.x.bytes * prod(problem.x_shape),
        "W": types.w.bytes * prod(problem.w_shape),
        "Y": types.y.bytes * prod(problem.y_shape),
        "PACKED": max(source.packed for source in entry.sources),
        "WORKSPACE": max(source.workspace for source in entry.sources),
    }
    return "".join(f"#define {entry.symbol}_{name}_SIZE {size}\n" for name, size in sizes.items())


def _extents(shape: tuple[int, ...], axes: str) -> str:
    """``1 x 56 x 56 x 64 (N H W C), strides 200704 3584 64 1``."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return f"{' x '.join(map(str, shape))} ({axes}), strides {' '.join(map(str, strides))}"


# Several units: one a file, what declares them, what chooses.


def _unit_files(whole: Project, values: dict[str, str]) -> dict[str, str]:
    """Return the text of all C files but the header and the self-test."""
    units = "\n".join(_declare_unit(whole, unit) for unit in whole.units)
    return {
        f"{whole.name}.c": _choosing(whole, values),
        f"{whole.name}_units.h": fill_template("units.h", values | {"UNITS": units}),
        **{f"{whole.name}_{unit.key}.c": _unit(whole, unit, values) for unit in whole.units},
    }


def compiles_where(code: str, name: str, key: str) -> str:
    """Return the C condition of code of one kind of CPU: processors that have its headers."""
    headers = set(re.findall(r"^#include <(\w+\.h)>", code, re.MULTILINE))
    conditions = dict.fromkeys(_PROCESSORS[name] for name in _PROCESSORS if name in headers)
    return " && ".join([*conditions, f"!defined({name.upper()}_WITHOUT_{key.upper()})"])


def _alternatives(entry: Entry) -> bool:
    """Tell whether there is a choice to make."""
    return len(entry.sources) > 1


def _isa_supported(whole: Project, key: str) -> str:
    """Return the call that asks whether this CPU runs a unit."""
    return f"{whole.name}_{key}_supported()"


def _unit(whole: Project, unit: ProjectFile, values: dict[str, str]) -> str:
    code = assemble(unit.sources)
    nothing = [refuse(source.functions, source.symbol) for source in unit.sources]
    count = len(unit.sources)
    return fill_template("unit.c", values | {
        "KEY": unit.key, "COUNT": f"{count} layer{'s' * (count > 1)}", "CODE": code,
        "CONDITION": compiles_where(code, whole.name, unit.key), "EMPTY": "\n".join(nothing),
    })  # fmt: skip


def _declare_unit(whole: Project, unit: ProjectFile) -> str:
    """Return declarations of a unit; layers that have no other are in the public header."""
    public = {entry.symbol for entry in whole.entries}
    sources = [source for source in unit.sources if source.symbol not in public]
    head = f"/* {unit.key}: needs these features: {unit.features} */\n"
    question = f"int {whole.name}_{unit.key}_supported(void);\n"
    return head + question + "".join(source.declarations for source in sources)


def _choosing(whole: Project, values: dict[str, str]) -> str:
    """Return the C file whose functions call the first unit that the CPU runs."""
    chosen = [entry for entry in whole.entries if _alternatives(entry)]
    parts = [_dispatch_entry(whole, entry) for entry in chosen if entry.symbol == entry.code]
    parts += [*(_isa(whole, entry) for entry in chosen), *_forwards(whole)]
    sets = dict.fromkeys(tuple(source.key for source in entry.sources) for entry in whole.entries)
    tests = [" || ".join(_isa_supported(whole, key) for key in keys) for keys in sets]
    grouped = [f"({test})" for test in tests] if len(tests) > 1 else tests
    return fill_template("layers.c", values | {
        "INCLUDE": f"{whole.name}_units.h", "CODE": "\n".join(parts),
        "SUPPORTED": "\n        && ".join(grouped),
    })  # fmt: skip


def _forwards(whole: Project) -> list[str]:
    """Return C of the layers whose code others hold."""
    return [entry.forwarded for entry in whole.entries if entry.symbol != entry.code]


def _dispatch_entry(whole: Project, entry: Entry) -> str:
    codes = [(_isa_supported(whole, source.key), source.symbol) for source in entry.sources]
    return f"/* {entry.symbol} */\n{dispatch(entry.functions, entry.symbol, codes)}\n"


def _isa(whole: Project, entry: Entry) -> str:
    tests = "".join(
        f'{_isa_supported(whole, source.key)} ? "{source.key}"\n         : '
        for source in entry.sources
    )
    return f'const char *{entry.symbol}_isa(void)\n{{\n    return {tests}"";\n}}\n'


# The self-test: loops of layers, and the steps of these in x, w and y.


def _selftest_values(whole: Project) -> dict[str, str]:
    """Return the values of the self-test's template."""
    rows, loops, axes = zip(*map(_row, whole.entries), strict=True)
    choice = any(len(entry.sources) > 1 for entry in whole.entries)
    return {
        **_signatures(whole),
        "LOOPS": str(max(loops)),
        "AXES": str(max(axes)),
        "ROWS": "\n".join(rows),
        "UNIT_ROWS": "\n".join(_unit_rows(whole, choice)),
        "CODE_ROWS": "\n".join(_code_rows(whole, choice)),
        "INCLUDE": f"{whole.name}_units.h" if whole.several else f"{whole.name}.h",
        "EVERY": ", by everything that can run here" if whole.several else "",
        "STRUCT": SCALES,
    }


def _signatures(whole: Project) -> dict[str, str]:
    """Return the signatures of each precision: a member of a union and a case of a switch."""
    precisions = list(dict.fromkeys(entry.precision for entry in whole.entries))
    values = {"SIGNATURES": ", ".join(f"AS_{_word(precision)}" for precision in precisions)}
    roles: dict[str, Role] = {"PACK": "pack_weights", "RUN": "run"}
    for prefix, role in roles.items():
        rows = {_word(precision): function(role, precision) for precision in precisions}
        if whole.on_device:
            rows = {word: device_functions([row], whole.name)[0] for word, row in rows.items()}
        signatures = (
            (row.result, f"(*{word})({', '.join(map(parameter, row.parameters))})")
            for word, row in rows.items()
        )
        values[f"{prefix}_TYPES"] = "\n".join(
            f"        {definition(*signature)};" for signature in signatures
        )
        values[f"{prefix}_CALLS"] = "\n".join(
            f"    case AS_{word}: {_call(f'c->{role}.{word}', row)}" for word, row in rows.items()
        )
    return values


def _call(pointer: str, row: Function) -> str:
    call = finish(row, f"{pointer}({', '.join(f'o.{name}' for name in row.names)})")
    return call if row.returns else f"{call} return;"


def _word(precision: Precision) -> str:
    """Return the precision as an identifier."""
    return str(precision).replace(":", "_")


def _unit_rows(whole: Project, choice: bool) -> list[str]:
    """Return the units of the project; before them the choice among them, if there is one."""
    if len(whole.units) == 1:
        return [f'    {{"", "{whole.units[0].features}", {whole.name}_supported}},']
    rows = [("choice", "all of one instruction set", f"{whole.name}_supported")] if choice else []
    rows += [(u.key, u.features, f"{whole.name}_{u.key}_supported") for u in whole.units]
    return [f'    {{"{key}", "{features}", {function}}},' for key, features, function in rows]


def _code_rows(whole: Project, choice: bool) -> list[str]:
    """Return the rows of each layer: its public functions, and the sources they choose from."""
    numbers = {unit.key: at + choice for at, unit in enumerate(whole.units)}
    rows: list[str] = []
    for at, entry in enumerate(whole.entries):
        if len(entry.sources) == 1:
            rows.append(_code(at, numbers[file_key(entry.sources[0])], "0", entry, entry.symbol))
            continue
        rows.append(_code(at, 0, f"{entry.symbol}_isa", entry, entry.symbol))
        if entry.symbol == entry.code:
            rows += [_code(at, numbers[s.key], "0", entry, s.symbol) for s in entry.sources]
    return rows


def _code(at: int, unit: int, isa: str, entry: Entry, symbol: str) -> str:
    word = _word(entry.precision)
    sizes = f"{symbol}_workspace_size, {symbol}_packed_size"
    return (
        f"    {{{at}, {unit}, {isa}, {sizes},\n"
        f"     {{.{word} = {symbol}_pack_weights}}, {{.{word} = {symbol}}}}},"
    )


def _row(entry: Entry) -> tuple[str, int, int]:
    """One layer in the table, how many loops it lists and how many axes of x or y at most."""
    problem = entry.layer.problem
    _, roles, strides = tune.model_of(problem)
    parts = [_dims(roles, part) for part in _ORDER]
    ends = [sum(map(len, parts[: count + 1])) for count in range(len(parts))]
    w = roles.b.offset(strides[roles.b.array])
    y = roles.out.offset(strides[roles.out.array])
    sides = roles.a, roles.out
    steps = [
        f"{{{dim.extent}, {w.coef(dim.name)}, {y.coef(dim.name)}, "
        f"{_pair([', '.join(str(at.coef(dim.name)) for at in side.index) for side in sides])}}}"
        for dim in (dim for part in parts for dim in part)
    ]
    axes = [
        [
            f"{{{index.const}, {extent}, {stride}}}"
            for index, extent, stride in zip(
                side.index, side.shape, strides[side.array], strict=True
            )
        ]
        for side in sides
    ]
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    sizes = [*map(prod, shapes), problem.y_shape[problem.bias_axis]]
    inner = prod(problem.y_shape[problem.bias_axis + 1 :])
    precision = entry.precision
    types = (precision.x, precision.w, precision.y, precision.sum)
    plans = (entry.layer.schedule, *entry.layer.others)
    exact = max(
        (algorithm_of(plan).exact_inputs(problem) for plan in plans),
        key=lambda it: (len(it.patterns), it.scale),
    )
    name = problem.activation
    activation = (f"exact_{name}", ACTIVATIONS[name].error) if name else (0, 0)
    lines = [
        f'"{entry.identifier}", AS_{_word(precision)}, {", ".join(t.name.upper() for t in types)}',
        ", ".join(map(str, [*sizes, inner, w.const])),
        ", ".join(map(str, [*ends, f"{{{', '.join(str(len(own)) for own in axes)}}}"])),
        ", ".join(map(str, [*_weights(exact, problem.w_shape[2:]), *activation])),
        f"{{{', '.join(steps or ['{1, 0, 0, {{0}}}'])}}}",
        _pair([", ".join(own) for own in axes]),
    ]
    most = max(map(len, axes))
    return f"    {{{(',' + chr(10) + '     ').join(lines)}}},", max(1, len(steps)), most


def _weights(exact: ExactInputs, taps: Sequence[int]) -> list[object]:
    """Return C's initializers of the scale, of channels, of taps and of patterns of filters."""
    filters = exact.filters(taps) if exact.patterns else []
    numbers = [tap for own in filters for tap in own]
    size = round((sum(tap * tap for tap in numbers) / max(1, len(numbers))) ** 0.5)
    table = f"(const int[]){{{', '.join(map(str, numbers))}}}" if numbers else "0"
    return [size if numbers else exact.scale, exact.channels, prod(taps), len(filters), table]


def _pair(parts: Sequence[str]) -> str:
    """C's initializer of what there is for x and for y."""
    return f"{{{', '.join(f'{{{part}}}' for part in parts)}}}"


def _dims(roles: Contraction, part: Sequence[str]) -> list[Dim]:
    return [dim for dim in roles.dims if dim.role in part and dim.extent > 1]
