"""The self-test of exported layers: their loops, and the steps of these in x, w and y."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci import tune
from polysci.export.layers import Entry, Project
from polysci.lower.registry import algorithm_of
from polysci.numerics.activations import ACTIVATIONS
from polysci.numerics.dtypes import Precision
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.printers.c_values import parameter
from polysci.printers.interface import SCALES, Function, Role, function

_ORDER = (("m",), ("batch",), ("k", "br"), ("n",))


def values_of(whole: Project) -> dict[str, str]:
    """Return the values of the self-test's template."""
    rows, loops, axes = zip(*map(_row, whole.entries), strict=True)
    choice = any(len(entry.sources) > 1 for entry in whole.entries)
    return {
        **_signatures(whole),
        "LOOPS": str(max(loops)),
        "AXES": str(max(axes)),
        "ROWS": "\n".join(rows),
        "UNIT_ROWS": "\n".join(_units(whole, choice)),
        "CODE_ROWS": "\n".join(_codes(whole, choice)),
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
        values[f"{prefix}_TYPES"] = "\n".join(
            f"        {row.result} (*{word})({', '.join(map(parameter, row.parameters))});"
            for word, row in rows.items()
        )
        values[f"{prefix}_CALLS"] = "\n".join(
            f"    case AS_{word}: {_call(f'c->{role}.{word}', row)}" for word, row in rows.items()
        )
    return values


def _call(pointer: str, row: Function) -> str:
    call = row.finish(f"{pointer}({', '.join(f'o.{name}' for name in row.names)})")
    return call if row.returns else f"{call} return;"


def _word(precision: Precision) -> str:
    """Return the precision as an identifier."""
    return str(precision).replace(":", "_")


def _units(whole: Project, choice: bool) -> list[str]:
    """Return the units of the project; before them the choice among them, if there is one."""
    if len(whole.units) == 1:
        return [f'    {{"", "{whole.units[0].features}", {whole.name}_supported}},']
    rows = [("choice", "all of one instruction set", f"{whole.name}_supported")] if choice else []
    rows += [(u.key, u.features, f"{whole.name}_{u.key}_supported") for u in whole.units]
    return [f'    {{"{key}", "{features}", {function}}},' for key, features, function in rows]


def _codes(whole: Project, choice: bool) -> list[str]:
    """Return the rows of each layer: its public functions, and the sources they choose from."""
    numbers = {unit.key: at + choice for at, unit in enumerate(whole.units)}
    rows: list[str] = []
    for at, entry in enumerate(whole.entries):
        if len(entry.sources) == 1:
            rows.append(_code(at, numbers[entry.sources[0].key], "0", entry, entry.symbol))
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
    exact = max((algorithm_of(plan).exact_inputs for plan in plans), key=lambda it: it.scale)
    name = problem.activation
    activation = (f"exact_{name}", ACTIVATIONS[name].error) if name else (0, 0)
    lines = [
        f'"{entry.identifier}", AS_{_word(precision)}, {", ".join(t.name.upper() for t in types)}',
        ", ".join(map(str, [*sizes, inner, w.const])),
        ", ".join(map(str, [*ends, f"{{{', '.join(str(len(own)) for own in axes)}}}"])),
        ", ".join(map(str, [exact.scale, exact.channels, *activation])),
        f"{{{', '.join(steps or ['{1, 0, 0, {{0}}}'])}}}",
        _pair([", ".join(own) for own in axes]),
    ]
    most = max(map(len, axes))
    return f"    {{{(',' + chr(10) + '     ').join(lines)}}},", max(1, len(steps)), most


def _pair(parts: Sequence[str]) -> str:
    """C's initializer of what there is for x and for y."""
    return f"{{{', '.join(f'{{{part}}}' for part in parts)}}}"


def _dims(roles: Contraction, part: Sequence[str]) -> list[Dim]:
    return [dim for dim in roles.dims if dim.role in part and dim.extent > 1]
