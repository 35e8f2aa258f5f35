"""What the exported self-test knows of a layer: its loops, and where they step in x, w and y."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci import tune
from polysci.contraction import Contraction, Dim
from polysci.export.project import Unit, filled

_ORDER = (("m",), ("batch",), ("k", "br"), ("n",))


def text(units: Sequence[Unit], values: dict[str, str]) -> str:
    """The C file; ``values`` fill its other holes."""
    rows, loops, axes = zip(*map(_row, units), strict=True)
    sizes = {"LOOPS": str(max(loops)), "AXES": str(max(axes))}
    return filled("selftest.c", values | sizes | {"ROWS": "\n".join(rows)})


def _row(unit: Unit) -> tuple[str, int, int]:
    """One layer in the table, how many loops it lists and how many axes of x."""
    problem = unit.layer.problem
    _, roles, strides = tune.model_of(problem)
    parts = [_dims(roles, part) for part in _ORDER]
    ends = [sum(map(len, parts[: count + 1])) for count in range(len(parts))]
    w = roles.b.offset(strides[roles.b.array])
    y = roles.out.offset(strides[roles.out.array])
    steps = [
        f"{{{dim.extent}, {w.coef(dim.name)}, {y.coef(dim.name)}, "
        f"{{{', '.join(str(index.coef(dim.name)) for index in roles.a.index)}}}}}"
        for dim in (dim for part in parts for dim in part)
    ]
    axes = [
        f"{{{index.const}, {extent}, {stride}}}"
        for index, extent, stride in zip(
            roles.a.index, roles.a.shape, strides[roles.a.array], strict=True
        )
    ]
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    sizes = [*map(prod, shapes), problem.y_shape[problem.bias_axis]]
    inner = prod(problem.y_shape[problem.bias_axis + 1 :])
    symbol = unit.symbol
    functions = (f"{symbol}{end}" for end in ("_workspace_size", "_packed_size", "_pack_weights"))
    lines = [
        f'"{unit.identifier}", {", ".join(map(str, [*sizes, inner, w.const]))}',
        ", ".join(map(str, [*ends, len(axes)])),
        f"{{{', '.join(steps or ['{1, 0, 0, {0}}'])}}}",
        f"{{{', '.join(axes)}}}",
        ", ".join([*functions, symbol]),
    ]
    return f"    {{{(',' + chr(10) + '     ').join(lines)}}},", max(1, len(steps)), len(axes)


def _dims(roles: Contraction, part: Sequence[str]) -> list[Dim]:
    return [dim for dim in roles.dims if dim.role in part and dim.extent > 1]
