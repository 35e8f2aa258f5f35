"""Random and listed problems for devices, with schedules of their spaces, and their checks."""

from collections.abc import Iterator
from random import Random

from polysci.cost import Context
from polysci.lower import choice
from polysci.lower.mapped.plan import (
    FAMILY,
    deep_dims,
    form_of,
    kernel_family,
    kernels_of,
    longest_step,
)
from polysci.lower.registry import algorithm_of
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Arrays
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import COMPUTES, precision_named
from polysci.ops import layer_lists
from polysci.ops.convolution_gradients import Conv2dBackwardData, Conv2dBackwardWeights
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.primitive import Primitive, load_primitive
from polysci.runtime.source import emit
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule
from polysci.target.machine import assume_rates
from polysci.target.target import Target
from tests.models.test_all_layers import small
from tests.support.campaign.problems import OPERATORS, SHARES, random_problem
from tests.support.cuda_emulation import ORDERS, EmulatedCuda

MOST_FLOPS = 4e5  # that fibres compute in a second
RANKED = 3  # schedules of other algorithms among which one is drawn
THREADS = 3
WHOLE = ("conv1d", "conv2d", "conv3d", "deconv", "matmul")  # operators of 8-bit numbers
TYPES = ("u8:s8:u8", "s8:s8:s8", "u8:s8:s32", "s8:s8:u8")
FREE = ("conv1d", "conv2d", "conv3d", "deconv", "bwd_d", "bwd_w")  # operators with two layouts


def random_case(seed: int) -> Problem:
    """A problem of any operator with some images, in either layout."""
    random = Random(seed)
    while True:
        (operator,) = random.choices([*OPERATORS], SHARES)
        layout = random.choice(("nhwc", "nchw")) if operator in FREE else "nhwc"
        problem = random_problem(random, operator, layout, "f32")
        backwards = operator == "nest" and "[-" in str(problem)  # no vectors run along such axes
        if 0 < problem.flops <= MOST_FLOPS and 0 not in problem.y_shape and not backwards:
            return problem


def whole_case(seed: int) -> Problem:
    """A problem of 8-bit numbers, with some images, in either layout."""
    random = Random(seed)
    while True:
        operator, dtype = random.choice(WHOLE), random.choice(TYPES)
        layout = random.choice(("nhwc", "nchw")) if operator in FREE else "nhwc"
        problem = random_problem(random, operator, layout, dtype)
        if 0 < problem.flops <= MOST_FLOPS and 0 not in problem.y_shape:
            return problem


def tiny(problem: Conv2d | Matmul) -> Conv2d | Matmul:
    """The same filter, strides and padding with few positions, channels and groups."""
    own = small(problem)
    if isinstance(own, Matmul):
        return own.with_(M=min(own.M, 9), K=min(own.K, 17), N=min(own.N, 37))
    groups = min(own.groups, 3)
    per, filters = (min(size // own.groups, 19) for size in (own.C, own.K))
    return own.with_(C=groups * per, K=groups * filters, groups=groups)


def listed_cases(network: str) -> list[Problem]:
    """The distinct layers of a list, made tiny; forward and gradients in turns, as are layouts."""
    seen, cases = set[str](), list[Problem]()
    for layer in layer_lists.load(network):
        forward, at = tiny(layer), len(cases)
        if forward.key in seen:
            continue
        seen.add(forward.key)
        if isinstance(forward, Conv2d):
            forward = forward.with_(layout=("nhwc", "nchw")[at % 2])
            gradients = (Conv2dBackwardData, Conv2dBackwardWeights)
            cases.append(gradients[at % 3 - 1](forward) if at % 3 else forward)
        else:
            cases.append(forward)
    return cases


def drawn_schedule(problem: Problem, target: Target, seed: int) -> Schedule:
    """A random tile of groups that copy, else one of the model's first schedules.

    Raises UnsupportedError where there is none.
    """
    random, (_, roles, strides) = Random(seed), model_of(problem)
    if not choice.takes_groups(problem, target) or kernel_family(roles) != FAMILY:
        context = Context(roles, strides, target, assume_rates(target), THREADS)
        return random.choice(choice.candidates(problem, context, RANKED)[:RANKED]).schedule
    kernel = random.choice(kernels_of(target.isa.name, roles.a.dtype, (FAMILY,)))
    word = COMPUTES[kernel.compute].vnni_factor
    along_rows, along_columns = random.choice([(1, 2), (2, 1), (2, 2), (3, 2), (1, 8), (4, 4)])
    depth = word * random.randint(1, min(16, longest_step(kernel, deep_dims(roles))) // word)
    copy = Copy(random.choice((1, 2)), random.choice((0, 4)))
    tile = (along_rows * kernel.rows, along_columns * kernel.cols)
    return form_of(roles, kernel, *tile, depth, copy)


def emulated_faults(problem: Problem, seed: int, backend: EmulatedCuda) -> Iterator[str]:
    """Yield what is wrong of a drawn schedule, in every order of threads: integers and reals."""
    (target,) = backend.targets()
    schedule = drawn_schedule(problem, target, seed)
    source = emit(problem, schedule, THREADS)
    primitive = load_primitive(problem, source, THREADS, backend=backend.name)
    algorithm, numbers = algorithm_of(schedule), ()
    if schedule.transform:
        numbers = schedule.transform.numbers
    exact = Arrays.of(problem, seed, algorithm.exact_inputs(problem))
    if precision_named(problem.dtype).integer:
        reals: Arrays | Reals = Arrays.of(problem, seed + 1)
    else:
        reals = Reals.of(problem, seed, algorithm, numbers)
    whole: Arrays | Reals = Reals.of_integers(problem, exact) if rounds(problem) else exact
    for order in ORDERS:
        backend.emulated.order = order
        for data in (whole, reals):
            for variant in ("plain", "fused"):
                if fault := data.fault(variant, call(primitive, data, variant)):
                    yield f"{problem} {problem.layout} {schedule}: {order} {variant}: {fault}"


def rounds(problem: Problem) -> bool:
    """Whether results of integers are rounded."""
    return bool(problem.activation) or problem.factors != (1.0, 1.0)


def call(primitive: Primitive, data: Arrays | Reals, variant: str) -> Array:
    """The result; ``fused`` with bias, residual and clamp."""
    words, inputs = {}, data.inputs
    zero = data.x_zero if isinstance(data, Arrays) else None
    if variant == "fused":
        low, high = map(float, inputs["clamp"])
        words = {"bias": inputs["bias"], "residual": inputs["residual"], "clamp": (low, high)}
    w = inputs["w"]
    constant = primitive.problem.w_kind == "constant"
    packed = primitive.pack_weights(w, zero or 0) if constant else w
    scales = data.scales if isinstance(data, Arrays) else None
    return primitive(inputs["x"], packed, scales=scales, **words)
