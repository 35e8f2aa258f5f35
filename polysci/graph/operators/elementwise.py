"""Operators that treat every element alike, and those that choose between values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from math import prod
from types import MappingProxyType

import numpy as np

from polysci.graph.builder import FLOATS, Backward
from polysci.graph.formulas import Part, derive
from polysci.graph.graph import AFFINE, DROPOUT_MASK, Node
from polysci.graph.operators.builder import STORED, Builder, formula
from polysci.graph.operators.table import Evaluation, Operator, broadcast
from polysci.loop_ir.expressions import Expr, Load, Number, Position, apply, combine, constant
from polysci.loop_ir.functions import convert, kind_of_type
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import from_bf16, to_bf16
from polysci.numerics.formulas import gradients
from polysci.numerics.scalar_functions import (
    FUNCTIONS,
    ScalarFunction,
    apply_numpy,
    is_predicate,
    template,
)
from polysci.program.control import ChoiceStage

# Operators that ONNX's reference computes in f32, or not for tensors without axes.
_OWN_VALUES = ("erf", "softsign")
MOST_TERMS = 32  # of a sum that is computed at once
_SELU = MappingProxyType({"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875})
# Constant exponents that have a function of their own.
_POWERS = {2.0: "square", 3.0: "cube", 0.5: "sqrt", -1.0: "reciprocal"}


def apply_function(build: Builder, node: Node) -> None:
    """Apply a scalar function to tensors that broadcast, of any type that it has."""
    function, y = function_of(node), node.outputs[0]
    build.check_function(function.name, *node.inputs)
    numbers = _parameters(node, function.parameters).values()
    values = [build.load(name, y) for name in node.inputs]
    build.define(node, apply(function.name, *values, *numbers))


def function_of(node: Node) -> ScalarFunction:
    """Return the scalar function of a node, which an attribute of some operators chooses."""
    name, attributes = node.op, node.attributes
    if name == "gelu" and attributes.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    elif name == "mod" and attributes.get("fmod", 0):
        name = "remainder"  # of the sign of the dividend, not of the divisor
    elif name == "bit_shift":
        name = f"shift_{attributes.get('direction', ''):.40}"
    return FUNCTIONS[name]


def _parameters(node: Node, defaults: Mapping[str, float]) -> dict[str, float]:
    return {name: float(node.attributes.get(name, value)) for name, value in defaults.items()}


def selu(build: Builder, node: Node) -> None:
    """``gamma * elu(x)``."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_function("elu", x)
    value = formula("elu(x, alpha) * gamma", x=build.load(x, y), **_parameters(node, _SELU))
    build.define(node, value)


def add_all(build: Builder, node: Node) -> None:
    """Sum and Mean: tensors that broadcast, one after the other."""
    y = node.outputs[0]
    build.check_function("add", *node.inputs)
    parts = [build.load(name, y) for name in node.inputs]
    expr: Expr = parts[0]
    for number, part in enumerate(parts[1:], 1):
        if number % MOST_TERMS == 0:
            subtotal = build.add(node, f"{y}.part", expr, build.shape(y), build.dtype(y))
            expr = build.load(subtotal, y)
        expr = apply("add", expr, part)
    build.define(node, apply("div", expr, len(parts)) if node.op == "mean" else expr)


def extreme(build: Builder, node: Node) -> None:
    """Min and Max, two and two: compilers take seconds for long chains of choices."""
    function, y = node.op, node.outputs[0]
    build.check_function(function, *node.inputs)
    parts = [build.load(name, y) for name in node.inputs]
    numbers = [part for part in parts if isinstance(part, Number)]
    parts = [part for part in parts if not isinstance(part, Number)]
    while len(parts) > 1:
        rest = parts[len(parts) // 2 * 2 :]
        parts = [apply(function, *pair) for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts += rest
    parts += numbers  # the last ones: a layer can do what ends with a number
    build.define(node, reduce(partial(apply, function), parts))


def power(build: Builder, node: Node) -> None:
    """``x ^ y`` of any two types, of x's type: in double where y is real and x is not."""
    (x, y), output = node.inputs, node.outputs[0]
    build.check_numbers(node, x, y)
    own, other = build.dtype(x), build.dtype(y)
    base, exponent = build.load(x, output), build.load(y, output)
    if isinstance(exponent, Number) and exponent.value in _POWERS:
        function = _POWERS[exponent.value]
        if template(function, kind_of_type(own)) is not None:
            build.define(node, apply(function, base))
            return
    inner = own
    if own not in FLOATS:
        inner = "float64" if other in FLOATS else max(own, other, key=_widths)
    elif other == "float64":
        inner = other
    value = apply("pow", convert(base, own, inner), convert(exponent, other, inner))
    build.define(node, convert(value, inner, own))


def _widths(dtype: str) -> int:
    """Types of whole numbers by how much they hold."""
    return ("int64", "uint64").index(dtype) if dtype.endswith("int64") else -1


def shift_bits(build: Builder, node: Node) -> None:
    """BitShift; all bits are gone after as many as there are."""
    direction = node.attributes.get("direction")
    if direction not in ("left", "right"):
        build.refuse(f"direction {direction!r:.40}: expected left or right")
    apply_function(build, node)


def clip(build: Builder, node: Node) -> None:
    """A bound that is left out does not bound."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_function("max", x)
    if any(build.values[name].size != 1 for name in node.inputs[1:] if name):
        build.refuse("a bound of several numbers")
    expr = build.load(x, y)
    if node.input(1):
        expr = apply("max", expr, build.load(node.input(1), y))
    if node.input(2):
        expr = apply("min", expr, build.load(node.input(2), y))
    build.define(node, expr)


def affine(build: Builder, node: Node) -> None:
    """``x * scale + shift``, a number a channel."""
    x, scale, shift = node.inputs
    names = [
        build.number(f"{name}.f32", build.constants[name].astype(np.float32))
        for name in (scale, shift)
    ]
    a, b = (build.along(name, 1) for name in names)
    build.define(node, formula("x * a + b", x=build.load(x, node.outputs[0]), a=a, b=b))


def identity(build: Builder, node: Node) -> None:
    """Identity, and Dropout where nothing is learned."""
    trains = node.input(2) and build.known(node, 2, "training_mode")
    if node.op == "dropout" and trains is not None and bool(np.any(trains)):
        build.refuse("training")
    build.check_numbers(node, node.inputs[0])
    build.define(node, build.load(node.inputs[0], node.outputs[0]))
    if len(node.outputs) > 1 and node.outputs[1]:
        build.define(node, apply("add", 1.0, 0.0), node.outputs[1])


def cast(build: Builder, node: Node) -> None:
    """The type of the output is known."""
    x, y = node.inputs[0], node.outputs[0]
    for name in (x, y):
        if build.dtype(name) not in STORED:
            build.refuse(f"elements of {build.dtype(name)}")
    build.define(node, convert(build.load(x, y), build.dtype(x), build.dtype(y)))


WORD = 1 << 32


def dropout_mask(build: Builder, node: Node) -> None:
    """Draw a mask that is the same for any threads, order of axes and instruction set."""
    y, (counter,) = node.outputs[0], node.inputs
    shape, ratio = build.shape(y), float(node.attributes["ratio"])
    if build.values[y].size > WORD:
        build.refuse(f"a mask of {build.values[y].size} elements: at most 2^32")
    steps = {f"i{at}": prod(shape[at + 1 :]) for at in range(len(shape))}
    seed, step = (apply("unsigned", Load(counter, (constant(at),))) for at in range(2))
    key = apply("add", seed, float(node.attributes["key"] % WORD))
    bits = apply("philox", apply("unsigned", Position(combine(steps))), step, key)
    build.define(node, apply("greater_equal", bits, float(round(ratio * WORD))))


def _function_row(function: ScalarFunction) -> Operator:
    """The row of an operator that is a scalar function, of ONNX's own name or in another domain."""
    own_values = "." in function.onnx or function.name in _OWN_VALUES
    return Operator(
        function.name,
        function.onnx,
        apply_function,
        partial(broadcast, dtype="bool" if is_predicate(function.name) else ""),
        function_gradient if function.derivatives or function.choice else None,
        function_reference if own_values else None,
        "alike",
    )


def select(build: Builder, node: Node) -> None:
    """The first value where the condition holds, else the second."""
    y = node.outputs[0]
    build.check_numbers(node, *node.inputs)
    build.define(node, apply("select", *(build.load(name, y) for name in node.inputs)))


def parametric_relu(build: Builder, node: Node) -> None:
    """PRelu: x, or where it is negative x times a slope that broadcasts to its shape."""
    (x, slope), y = node.inputs, node.outputs[0]
    build.check_function("mul", x, slope)
    shape, own = build.shape(x), build.shape(slope)
    pairs = zip(own[::-1], shape[::-1], strict=False)
    if len(own) > len(shape) or any(size not in (1, extent) for size, extent in pairs):
        build.refuse(f"slope {list(own)} for x {list(shape)}")
    value, factor = build.load(x, y), build.load(slope, y)
    if build.dtype(x) in FLOATS:
        build.define(node, apply("leaky", value, factor))
    else:
        scaled = apply("mul", value, factor)
        build.define(node, apply("select", apply("less", value, 0), scaled, value))


def thresholded_relu(build: Builder, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    alpha = float(node.attributes.get("alpha", 1.0))
    build.define(node, formula("select(x > alpha, x, 0)", x=build.load(x, y), alpha=alpha))


def shrink(build: Builder, node: Node) -> None:
    """x moved towards 0 by ``bias`` where it is beyond ``lambd``, else 0."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_numbers(node, x)
    numbers = _parameters(node, {"bias": 0, "lambd": 0.5})
    dtype = build.dtype(x)
    inner = dtype if dtype in FLOATS else "float64"
    value = convert(build.load(x, y), dtype, inner)
    text = "select(x < -lambd, x + bias, select(x > lambd, x - bias, 0))"
    build.define(node, convert(formula(text, x=value, **numbers), inner, dtype))


def is_infinite(build: Builder, node: Node) -> None:
    """IsInf, of both signs or one."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    value = build.load(x, y)
    low, high = (
        bool(node.attributes.get(f"detect_{name}", 1)) for name in ("negative", "positive")
    )
    tests = {
        (True, True): apply("isinf", value),
        (True, False): apply("equal", value, float("-inf")),
        (False, True): apply("equal", value, float("inf")),
    }
    build.define(node, tests.get((low, high), Number(0.0)))


def choose(build: Builder, node: Node) -> None:
    """If: the results of one of its branches."""
    condition, *names = node.inputs
    build.check_numbers(node, *names)
    half = len(names) // 2
    build.stages.append(ChoiceStage(
        str(node), condition, node.outputs, tuple(names[:half]), tuple(names[half:])
    ))  # fmt: skip


# Operator without a function of its own -> the gradient of x, and its attributes.
_FORMULAS: Mapping[str, tuple[str, Mapping[str, float]]] = MappingProxyType(
    {
        "thresholded_relu": ("select(x > alpha, dy, 0)", MappingProxyType({"alpha": 1.0})),
        "selu": ("select(x > 0, dy * gamma, dy * (y + alpha * gamma))", _SELU),
    }
)


def formula_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """A row of _FORMULAS."""
    text, defaults = _FORMULAS[node.op]
    return [derive(back, text, **_names(node, dys, ("x",), defaults))]


def function_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Apply the derivatives of a scalar function to tensors that broadcast."""
    function = function_of(node)
    names = _names(node, dys, function.names, function.parameters)
    return [
        back.unbroadcast(derive(back, formula, **names), back.shape(name))
        if formula is not None and back.wants(name) else ""
        for name, formula in zip(node.inputs, gradients(function.name), strict=False)
    ]  # fmt: skip


def _names(
    node: Node, dys: Sequence[str], inputs: Sequence[str], defaults: Mapping[str, float]
) -> dict[str, Part]:
    """The tensors and numbers of formulas by their names."""
    tensors = dict(zip(inputs, node.inputs, strict=False))
    return {**tensors, "y": node.outputs[0], "dy": dys[0], **_parameters(node, defaults)}


def identity_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Identity."""
    return [dys[0]]


def add_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Sum and Mean of any number of tensors that broadcast."""
    dy = dys[0]
    if node.op == "mean":
        dy = derive(back, "dy * share", dy=dy, share=1 / len(node.inputs))
    return [
        back.unbroadcast(dy, back.shape(name)) if back.wants(name) else "" for name in node.inputs
    ]


def power_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``a ^ b``; a square needs no power."""
    (a, b), dxs = node.inputs, ["", ""]
    value = back.constant_value(b)
    square = value is not None and value.size == 1 and float(value.reshape(-1)[0]) == 2
    by_base, by_exponent = gradients("pow")
    formulas = ["2 * dy * a" if square else by_base, by_exponent]
    for at, (name, text) in enumerate(zip((a, b), formulas, strict=True)):
        if text is not None and back.wants(name):
            dx = derive(back, text, **_names(node, dys, ("a", "b"), {}))
            dxs[at] = back.unbroadcast(dx, back.shape(name))
    return dxs


def extreme_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Min and Max; values that are equal share the gradient."""
    y = node.outputs[0]
    one = back.number(1.0, back.dtype(y))
    equal = [derive(back, "select(x == y, n, 0)", x=name, y=y, n=one) for name in node.inputs]
    share = derive(back, "dy / n", dy=dys[0], n=back.sum(equal))
    return [
        back.unbroadcast(derive(back, "m * s", m=mark, s=share), back.shape(name))
        if back.wants(name) else ""
        for name, mark in zip(node.inputs, equal, strict=True)
    ]  # fmt: skip


def clip_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Nothing beyond the bounds."""
    dx = dys[0]
    for position, test in ((1, "x >= bound"), (2, "x <= bound")):
        if bound := node.input(position):
            names = {"x": node.inputs[0], "bound": bound, "dx": dx}
            dx = derive(back, f"select({test}, dx, 0)", **names)
    return [dx, *[""] * (len(node.inputs) - 1)]


def parametric_relu_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """PRelu, and its slope."""
    x, slope = node.inputs
    names = {"x": x, "a": slope, "dy": dys[0]}
    dx = derive(back, "select(x > 0, dy, dy * a)", **names)
    da = derive(back, "select(x > 0, 0, dy * x)", **names)
    return [dx, back.unbroadcast(da, back.shape(slope))]


def function_reference(of: Evaluation) -> list[Array]:
    """Return the values of a scalar function, real numbers in the type of the first."""
    function, values = function_of(of.node), of.inputs
    numbers = _parameters(of.node, function.parameters).values()
    y = apply_numpy(function.name, *values, *map(np.asarray, numbers))
    return [y if y.dtype.kind != "f" else y.astype(values[0].dtype)]


def affine_reference(of: Evaluation) -> list[Array]:
    x, scale, shift = of.inputs
    along = (-1, *[1] * (x.ndim - 2))
    return [x * scale.reshape(along) + shift.reshape(along)]


def cast_reference(of: Evaluation) -> list[Array] | None:
    """Numbers as those of the result's type."""
    if not of.results:
        return None
    (x,), dtype = of.inputs, of.results[0].dtype
    return [from_bf16(to_bf16(x)) if dtype == "bf16" else x.astype(dtype)]


def choose_reference(of: Evaluation) -> list[Array] | None:
    """If: the results of one of its branches."""
    condition, *names = of.node.inputs
    half = len(names) // 2
    chosen = names[:half] if of.known[condition].any() else names[half:]
    return [of.known[name] for name in chosen]


def philox(low: Array, high: int, key: int) -> Array:
    """The first word of Philox2x32-10 (Salmon et al., Parallel Random Numbers, SC 2011)."""
    left, right = low.astype(np.uint64), np.full(low.shape, high, np.uint64)
    for number in range(10):
        product = left * np.uint64(0xD256D193)
        word = np.uint64((key + number * 0x9E3779B9) % WORD)
        left, right = (product >> np.uint64(32)) ^ word ^ right, product & np.uint64(WORD - 1)
    return left


def dropout_mask_reference(of: Evaluation) -> list[Array]:
    """True where an element is kept."""
    (counter,), shape, node = of.inputs, of.results[0].shape, of.node
    seed, step = (int(value) for value in counter)
    key = (seed + node.attributes["key"]) % WORD
    bits = philox(np.arange(np.prod(shape, dtype=np.int64)), step % WORD, key)
    return [(bits >= round(node.attributes["ratio"] * WORD)).reshape(shape)]


ROWS = (
    *(_function_row(function) for function in FUNCTIONS.values()
      if function.onnx and function.name != "select"),
    Operator("sum", "Sum", add_all, gradient=add_gradient, dims="alike"),
    Operator("mean", "Mean", add_all, gradient=add_gradient, dims="alike"),
    Operator("min", "Min", extreme, gradient=extreme_gradient, dims="alike"),
    Operator("max", "Max", extreme, gradient=extreme_gradient, dims="alike"),
    Operator("selu", "Selu", selu, gradient=formula_gradient, dims="alike"),
    Operator("gelu", "Gelu", apply_function, gradient=function_gradient,
             reference=function_reference, dims="alike"),
    Operator("pow", "Pow", power, gradient=power_gradient, dims="alike"),
    Operator("mod", "Mod", apply_function, dims="alike"),
    Operator("bit_shift", "BitShift", shift_bits, dims="alike"),
    Operator("clip", "Clip", clip, gradient=clip_gradient, dims="alike"),
    Operator("identity", "Identity", identity, gradient=identity_gradient, dims="alike"),
    Operator("dropout", "Dropout", identity, dims="alike"),
    Operator("cast", "Cast", cast, reference=cast_reference, dims="alike"),
    Operator("cast_like", "CastLike", cast, dims="alike"),
    Operator(AFFINE, "", affine, reference=affine_reference),
    Operator(DROPOUT_MASK, "", dropout_mask, reference=dropout_mask_reference),
    Operator("if", "If", choose, reference=choose_reference),
    Operator("select", "Where", select, gradient=function_gradient, dims="alike"),
    Operator("prelu", "PRelu", parametric_relu, gradient=parametric_relu_gradient, dims="alike"),
    Operator("thresholded_relu", "ThresholdedRelu", thresholded_relu, gradient=formula_gradient,
             dims="alike"),
    Operator("shrink", "Shrink", shrink, dims="alike"),
    Operator("isinf", "IsInf", is_infinite, dims="alike", torch=("isinf",)),
)  # fmt: skip
