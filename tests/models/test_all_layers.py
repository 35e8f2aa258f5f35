"""Every layer of models/ in every precision, on maps made small, against float64 and integers.

Each layer is checked in one precision, the next one in the next; with ``-m slow`` in all of them.
"""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from polysci.numerics.dtypes import PRECISIONS
from polysci.ops import layer_lists
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.runtime.source import Source
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.judge import Judge, build

LARGEST = 9  # positions of the result along each axis
NETWORKS = layer_lists.names()
FILE = 8  # primitives in one C file


def small(problem: Conv2d | Matmul) -> Conv2d | Matmul:
    """The same filter, channels, strides and padding on a map of a few positions.

    Of a product a few rows, and less of what is summed over.
    """
    if isinstance(problem, Matmul):
        sizes = {"M": min(problem.M, LARGEST), "K": min(problem.K, 70), "N": min(problem.N, 70)}
        return problem.with_(name="", multiplicity=1, **sizes)
    sizes = {}
    for axis, (size, taps) in enumerate((("H", "R"), ("W", "S"))):
        reach = (getattr(problem, taps) - 1) * problem.dilation[axis] + 1
        most = (LARGEST - 1) * problem.stride[axis] + reach - 2 * problem.pad[axis]
        sizes[size] = min(getattr(problem, size), max(1, most))
    return problem.with_(N=1, name="", multiplicity=1, **sizes)


def layers(network: str) -> list[Conv2d | Matmul]:
    """The distinct layers of a network that no network before it has, all made small."""
    seen: dict[str, None] = {}
    for name in NETWORKS[: NETWORKS.index(network)]:
        seen |= dict.fromkeys(small(one).key for one in layer_lists.load(name))
    own = {small(one).key: small(one) for one in layer_lists.load(network)}
    return [problem for key, problem in own.items() if key not in seen]


def check(judge: Judge, cases: list[Conv2d | Matmul]) -> None:
    """Build a random schedule of every problem, several in one file; all must be right."""
    units: defaultdict[object, list[tuple[Conv2d | Matmul, Source]]] = defaultdict(list)
    for seed, problem in enumerate(cases):
        (plan,) = samples.members(samples.fixed_context(problem, 1, detect()), 1, seed)
        source = emit(problem, plan, 1, EmitOptions(f"layer_{seed}"))
        units[source.header_set].append((problem, source))
    files = [found[at : at + FILE] for found in units.values() for at in range(0, len(found), FILE)]
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda part: build([source for _, source in part]), files))
    for path, part in zip(paths, files, strict=True):
        for problem, source in part:
            judge.judge(problem, path, source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("network", NETWORKS)
def test_every_layer_in_some_precision(judge: Judge, network: str) -> None:
    names = list(PRECISIONS)
    check(
        judge, [one.with_(dtype=names[at % len(names)]) for at, one in enumerate(layers(network))]
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_layer_in_every_precision(judge: Judge, network: str, dtype: str) -> None:
    check(judge, [one.with_(dtype=dtype) for one in layers(network)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bf16", "u8:s8:u8"])
def test_resnet_50_as_it_is(judge: Judge, dtype: str) -> None:
    check(
        judge,
        [one.with_(name="", multiplicity=1) for one in layer_lists.load("resnet50", "nhwc", dtype)],
    )


@pytest.mark.exhaustive
def test_no_layer_is_left_out() -> None:
    wanted = {small(one).key for name in NETWORKS for one in layer_lists.load(name)}
    assert wanted == {one.key for name in NETWORKS for one in layers(name)}
