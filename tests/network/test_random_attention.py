"""Random attention problems beside float64, written as operators and as one node."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto

from polysci.target.host import detect
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node

PROBLEMS = 10  # of a network
# What rounding leaves of a weighted mean of values, relative to the largest of them: scores of some
# units, whose errors of 2^-24 each the exponential multiplies, summed over up to 64 products.
BOUND = 64 * 2.0**-24


@dataclass(frozen=True)
class Attention:
    """Queries of (batch, heads, length, size), and keys and values whose heads they share."""

    batch: int
    heads: int
    shared: int
    queries: int
    keys: int
    size: int
    width: int
    scale: float
    cap: float
    mask: str
    merged: bool  # heads lie beside each other in a row of a token
    one_node: bool

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of queries, keys and values."""
        parts = (
            (self.heads, self.queries, self.size),
            (self.shared, self.keys, self.size),
            (self.shared, self.keys, self.width),
        )
        return [
            (self.batch, length, heads * size) if self.merged else (self.batch, heads, length, size)
            for heads, length, size in parts
        ]


def problem_of(random: np.random.Generator) -> Attention:
    def pick(*values: Any) -> Any:
        return values[random.integers(len(values))]

    shared = pick(1, 1, 2, 3)
    queries = pick(1, 1, int(random.integers(2, 40)), int(random.integers(30, 90)))
    keys = int(random.integers(1, 120)) + (queries if pick(0, 1) else 0)
    masks = ("none", "causal", "padding", "window", "slopes", "bias")
    size = pick(1, 3, 8, 16, 20, 32, 64)
    return Attention(
        pick(1, 1, 2, 3), shared * pick(1, 1, 2, 4), shared, queries, max(keys, queries), size,
        pick(size, size, 5, 24), pick(0.0, 0.4), pick(0.0, 0.0, 3.0), pick(*masks),
        pick(False, True), pick(False, True),
    )  # fmt: skip


def mask_of(problem: Attention, random: np.random.Generator) -> np.ndarray | None:
    """Return what is added to the scores; each query sees a key."""
    own = np.arange(problem.queries)[:, None] + problem.keys - problem.queries
    keys = np.arange(problem.keys)[None]
    match problem.mask:
        case "causal":
            return np.where(keys <= own, 0.0, -np.inf)[None, None]
        case "window":
            return np.where((keys <= own) & (keys > own - 5), 0.0, -np.inf)[None, None]
        case "padding":
            count = random.integers(1, problem.keys + 1, problem.batch)
            return np.where(keys < count[:, None], 0.0, -np.inf)[:, None, None]
        case "slopes":  # of distances: Press et al., 2022
            slopes = 2.0 ** -np.arange(1, problem.heads + 1)
            return (slopes[:, None, None] * (keys - own))[None]
        case "bias":
            return random.normal(size=(1, problem.heads, problem.queries, problem.keys))
    return None


def exact(problem: Attention, parts: list[np.ndarray], mask: np.ndarray | None) -> np.ndarray:
    """Return the result by heads, in float64."""
    by_heads = list[np.ndarray]()
    for part, heads in zip(parts, (problem.heads, problem.shared, problem.shared), strict=True):
        wide = part.astype(np.float64)
        if problem.merged:
            wide = wide.reshape(*wide.shape[:2], heads, -1).swapaxes(1, 2)
        by_heads.append(wide.repeat(problem.heads // heads, 1))
    q, k, v = by_heads
    scores = q @ k.swapaxes(2, 3) * (problem.scale or problem.size**-0.5)
    if problem.cap:
        scores = problem.cap * np.tanh(scores / problem.cap)
    scores = scores if mask is None else scores + mask.astype(np.float32)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True) @ v


def nodes_of(problem: Attention, tag: str, weights: dict[str, Any]) -> list[NodeProto]:
    """Return the nodes from q, k, v and the mask of a tag to y, by heads where it is not merged."""
    q, k, v, m, y = (f"{letter}{tag}" for letter in "qkvmy")
    mask = m if problem.mask != "none" else ""
    if problem.one_node:
        words: dict[str, Any] = {"scale": problem.scale} if problem.scale else {}
        words |= {"softcap": problem.cap} if problem.cap else {}
        if problem.merged:
            words |= {"q_num_heads": problem.heads, "kv_num_heads": problem.shared}
        return [node("Attention", f"{q} {k} {v} {mask}", y, **words)]
    nodes, names = list[NodeProto](), list[str]()

    def number(name: str, value: Any) -> str:
        weights[f"{name}{tag}"] = np.array(value)
        return f"{name}{tag}"

    def add(op: str, inputs: str, output: str, **words: Any) -> str:
        nodes.append(node(op, inputs, output, **words))
        return output

    for name, shape, heads in zip(
        (q, k, v), problem.shapes, (problem.heads, problem.shared, problem.shared), strict=True
    ):
        x, length, size = name, shape[-2], shape[-1] // (heads if problem.merged else 1)
        if problem.merged:
            weights[f"{name}_split_shape"] = np.array([problem.batch, length, heads, size])
            x = add("Reshape", f"{x} {name}_split_shape", f"{name}_split")
            x = add("Transpose", x, f"{name}_heads", perm=[0, 2, 1, 3])
        if heads != problem.heads:
            group = problem.heads // heads
            shapes = {
                "single": [problem.batch, heads, 1, length, size],
                "wide": [problem.batch, heads, group, length, size],
                "all": [problem.batch, problem.heads, length, size],
            }
            for op, word in (("Reshape", "single"), ("Expand", "wide"), ("Reshape", "all")):
                weights[f"{name}_{word}_shape"] = np.array(shapes[word])
                x = add(op, f"{x} {name}_{word}_shape", f"{name}_{word}")
        names.append(x)
    turned = add("Transpose", names[1], f"{k}_turned", perm=[0, 1, 3, 2])
    scores = add("MatMul", f"{names[0]} {turned}", f"products{tag}")
    scale = np.float32(problem.scale or problem.size**-0.5)
    scores = add("Mul", f"{scores} {number('scale', scale)}", f"scores{tag}")
    if problem.cap:
        cap = number("cap", np.float32(problem.cap))
        scores = add("Div", f"{scores} {cap}", f"part{tag}")
        scores = add("Mul", f"{add('Tanh', scores, f'tanh{tag}')} {cap}", f"capped{tag}")
    if mask:
        scores = add("Add", f"{scores} {mask}", f"masked{tag}")
    shares = add("Softmax", scores, f"shares{tag}", axis=3)
    y_heads = add("MatMul", f"{shares} {names[2]}", f"{y}_heads" if problem.merged else y)
    if problem.merged:
        weights[f"{y}_shape"] = np.array([problem.batch, problem.queries, -1])
        turned = add("Transpose", y_heads, f"{y}_turned", perm=[0, 2, 1, 3])
        add("Reshape", f"{turned} {y}_shape", y)
    return nodes


def check(problems: list[Attention], random: np.random.Generator, isa: str, threads: int) -> None:
    """Compare the results of a network of all problems with those in float64."""
    nodes, arrays, weights = list[NodeProto](), dict[str, np.ndarray](), dict[str, Any]()
    expected = dict[str, np.ndarray]()
    for at, problem in enumerate(problems):
        parts = [random.normal(size=shape).astype(np.float32) for shape in problem.shapes]
        arrays |= {f"{letter}{at}": part for letter, part in zip("qkv", parts, strict=True)}
        mask = mask_of(problem, random)
        if mask is not None:
            as_input = problem.mask in ("padding", "bias") and random.integers(2)
            (arrays if as_input else weights)[f"m{at}"] = mask.astype(np.float32)
        nodes += nodes_of(problem, str(at), weights)
        result = exact(problem, parts, mask)
        if problem.merged:
            result = result.swapaxes(1, 2).reshape(problem.batch, problem.queries, -1)
        expected[f"y{at}"] = result
    shapes = {name: array.shape for name, array in arrays.items()}
    graph = read(model(nodes, shapes, dict.fromkeys(expected), weights, 23))
    results = network_of(graph, threads=threads, isa=isa)(arrays)
    results = results if isinstance(results, dict) else {"y0": results}
    for at, (problem, (name, wanted)) in enumerate(zip(problems, expected.items(), strict=True)):
        size = np.abs(arrays[f"v{at}"]).max()
        assert results[name].shape == wanted.shape, problem
        assert np.abs(results[name] - wanted).max() <= BOUND * size, problem


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(50))
def test_as_in_float64(seed: int) -> None:
    random = np.random.default_rng(seed)
    problems = [problem_of(random) for _ in range(PROBLEMS)]
    check(problems, random, "portable" if seed % 2 else detect().isa, 1 + seed % 3 % 2)


def test_values_of_one_column_that_lie_apart() -> None:
    """The second factor of the last product is a column, whose elements are not neighbours."""
    problem = Attention(2, 3, 3, 6, 7, 2, 1, 0.4, 0.0, "none", merged=True, one_node=False)
    check([problem], np.random.default_rng(0), "portable", 1)
