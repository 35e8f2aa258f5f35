"""Operands of a call and the results that it must have."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polysci import Scales
from polysci.lower.registry import algorithm_of
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Arrays, difference
from polysci.numerics.dtypes import Precision, precision_named, to_stored
from polysci.ops.problem import Problem, bias_shape, input_shapes
from polysci.space.schedule import Schedule
from tests.support.campaign.layers import LayerCase

Array = np.ndarray[Any, Any]
SUMS = (1 << 31) - (1 << 17)  # beyond which sums of products would not fit 32 bits
FAR = np.float32(np.inf)


@dataclass(frozen=True, slots=True)
class Operands:
    """x, w and the arrays that a call takes by name; what else it takes; who judges the result."""

    x: Array
    w: Array
    arrays: dict[str, Array]
    fault: Callable[[Array], str | None]
    x_zero: int = 0
    words: dict[str, Any] = field(default_factory=dict)


def operands_of(case: LayerCase, problem: Problem, schedule: Schedule) -> Operands:
    """Reproducible: by the axes of the case and its seed."""
    if precision_named(problem.dtype).integer:
        return whole_numbers(case, problem)
    return floats(case, problem, schedule)


def limits_of(case: LayerCase, spread: float) -> tuple[np.float32, np.float32]:
    low, high = np.float32(-np.rint(spread)), np.float32(2 * np.rint(spread) + 1)
    rows = {"both": (low, high), "low": (low, FAR), "relu": (np.float32(0), FAR)}
    return rows.get(case.clamp, (-FAR, FAR))


def words_of(case: LayerCase, limits: tuple[np.float32, np.float32]) -> dict[str, Any]:
    if case.clamp in ("none", "relu"):
        return {} if case.clamp == "none" else {"activation": "relu"}
    return {"clamp": tuple(map(float, limits))}


def chosen(case: LayerCase, inputs: dict[str, Array]) -> dict[str, Array]:
    return {name: inputs[name] for name in ("bias", "residual") if getattr(case, name) == "yes"}


def floats(case: LayerCase, problem: Problem, schedule: Schedule) -> Operands:
    """Of integers the exact results, unless a function ends the sums; of reals a bound."""
    precision, algorithm = precision_named(problem.dtype), algorithm_of(schedule)
    exact = case.values == "integers"
    numbers = schedule.transform.numbers if schedule.transform else ()
    if exact:
        made = Arrays.of(problem, case.seed, algorithm.exact_inputs(problem))
        inputs = made.inputs
    else:
        reals = Reals.of(problem, case.seed, algorithm, numbers)
        inputs = reals.inputs
    if exact and problem.activation:
        reals = Reals.of_integers(problem, made)
    taken = chosen(case, inputs)
    spread = max(1.0, float(np.abs(inputs["clamp"][0]))) if exact else float(inputs["clamp"][1]) / 2
    limits = limits_of(case, spread)
    words = words_of(case, limits)
    if exact and not problem.activation:
        wide = {name: taken.get(name) for name in ("bias", "residual")}
        sums = problem.reference(inputs["x"], inputs["w"], **wide)
        with np.errstate(over="ignore"):  # what f16 cannot hold is infinite
            clipped = np.clip(np.asarray(sums, np.float32), *limits)
            expected = to_stored(clipped, precision.y)
        return Operands(
            inputs["x"], inputs["w"], taken, lambda y: difference(y, expected), words=words
        )
    absent = {name: inputs[name] * 0 for name in ("bias", "residual") if name not in taken}
    against = replace(reals, inputs=inputs | absent | {"clamp": np.array(limits, np.float32)})
    return Operands(
        inputs["x"], inputs["w"], taken, lambda y: against.fault("fused", y), words=words
    )


def zero_of(kind: str, random: np.random.Generator, low: int, high: int) -> int:
    rows = {"none": 0, "least": low, "most": high, "any": int(random.integers(low, high + 1))}
    return rows[kind]


def whole_numbers(case: LayerCase, problem: Problem) -> Operands:
    """Over the whole range of their types, with zero points and scales as the case has them."""
    precision, random = precision_named(problem.dtype), np.random.default_rng(case.seed)
    shapes, terms = input_shapes(problem), max(1, problem.terms)
    x, residual = (
        _any(random, shapes[name], kind)
        for name, kind in (("x", precision.x.numpy), ("residual", precision.y.numpy))
    )
    top = min(127, SUMS // (terms * 255 * 2))
    w = random.integers(-top - (top == 127), top + 1, shapes["w"]).astype(precision.w.numpy)
    bias = random.integers(-1000, 1001, shapes["bias"]).astype(np.int32)
    limits_x = np.iinfo(precision.x.numpy)
    x_zero = zero_of(case.x_zero, random, limits_x.min, limits_x.max)
    taken = chosen(case, {"bias": bias, "residual": residual})
    wide = x.astype(np.float64) - x_zero, w.astype(np.float64)
    sums = np.asarray(problem.reference(*wide))  # float64 holds every sum
    if "bias" in taken:
        sums = sums + bias.reshape(bias_shape(problem))
    spread = max(1.0, float(np.std(sums))) if sums.size else 1.0
    if precision.scaled:
        expected, words = _scaled(case, problem, precision, random, sums, taken, spread)
    else:
        limits = limits_of(case, spread)
        words = words_of(case, limits)
        sums = sums + taken["residual"] if "residual" in taken else sums
        expected = np.clip(sums, *map(float, limits)).astype(np.int32)
    return Operands(x, w, taken, lambda y: difference(y, expected), x_zero, words)


def _scaled(
    case: LayerCase, problem: Problem, precision: Precision, random: np.random.Generator,
    sums: Array, taken: dict[str, Array], spread: float,
) -> tuple[Array, dict[str, Any]]:  # fmt: skip
    """8-bit results of sums, and the call's scales and limits."""
    along, limits = bias_shape(problem), limits_of(case, 60.0)
    most = np.iinfo(precision.y.numpy)
    size = {"default": (), "one": (), "channels": (max(along, default=1),)}[case.scales]
    given = Scales(
        (random.random(size) + 0.5) * 80 / spread,
        y_zero=zero_of(case.y_zero, random, most.min, most.max),
        residual_scale=float(random.choice([0.3, 1.0, -0.7])),
        residual_zero=zero_of(case.residual_zero, random, most.min, most.max),
    )
    scales = Scales() if case.scales == "default" else given
    words = words_of(case, limits) | ({} if case.scales == "default" else {"scales": scales})
    clamp = None if case.clamp == "none" else (float(limits[0]), float(limits[1]))
    expected = scales.result(sums, along, precision.y, taken.get("residual"), clamp)
    return expected, words


def _any(random: np.random.Generator, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    limits = np.iinfo(kind if kind.itemsize == 1 else np.int16)
    return random.integers(limits.min, limits.max + 1, shape).astype(kind)
