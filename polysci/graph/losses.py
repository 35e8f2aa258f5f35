"""Losses as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

from polysci.errors import SpecError
from polysci.graph.builder import GraphBuilder
from polysci.graph.formulas import Part, derive

IGNORED = -100  # the label that PyTorch's cross entropy leaves out


def add_cross_entropy(
    graph: GraphBuilder, scores: str, target: str, *, reduction: str = "mean",
    ignore_index: int = IGNORED, label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    """Add the loss of scores (rows, classes, ...) for the index of a class a row (rows, ...).

    ``label_smoothing`` is the share of the target that all classes have equally. A row whose label
    is ``ignore_index`` does not count. Raises SpecError.
    """
    shape = graph.shape(scores)
    _check_shape("target", graph.shape(target), (shape[0], *shape[2:]))
    if not 0 <= label_smoothing <= 1:
        raise SpecError(f"label_smoothing={label_smoothing!r:.40}: expected 0 to 1")
    _check_reduction(reduction)
    rows = graph.shape(target)
    loss, log = graph.add_many(
        "cross_entropy", (scores, target),
        [(rows if reduction == "none" else (), "float32"), (shape, "float32")],
        reduction=reduction, ignore_index=ignore_index,
    )  # fmt: skip
    if not label_smoothing:
        return loss
    names: dict[str, Part] = {"label": target, "ignored": float(ignore_index)}
    mean = derive(graph, "t / n", t=graph.total(log, [1]), n=-float(shape[1]))
    smooth = derive(graph, "select(label == ignored, 0, mean)", mean=mean, **names)
    if reduction != "none":
        smooth = graph.total(smooth, range(len(rows)))
    if reduction == "mean":
        one = graph.number(1.0)
        counted = derive(graph, "select(label == ignored, 0, one)", one=one, **names)
        smooth = derive(graph, "t / n", t=smooth, n=graph.total(counted, range(len(rows))))
    text = "loss * rest + smooth * share"
    return derive(graph, text, loss=loss, smooth=smooth, share=label_smoothing,
                  rest=1 - label_smoothing)  # fmt: skip


def add_mean_squares(graph: GraphBuilder, x: str, target: str, *, reduction: str = "mean") -> str:
    """``(x - target)^2``. Raises SpecError."""
    _check_shape("target", graph.shape(target), graph.shape(x))
    return _reduce(graph, derive(graph, "(d := x - t) * d", x=x, t=target), reduction)


def add_binary_cross_entropy(
    graph: GraphBuilder, x: str, target: str, *, reduction: str = "mean"
) -> str:
    """Add the loss of logits and probabilities from 0 to 1: ``log(1 + exp(x)) - x * target``."""
    _check_shape("target", graph.shape(target), graph.shape(x))
    return _reduce(graph, derive(graph, "softplus(x) - x * t", x=x, t=target), reduction)


def _reduce(graph: GraphBuilder, x: str, reduction: str) -> str:
    _check_reduction(reduction)
    if reduction == "none":
        return x
    total = graph.total(x, range(len(graph.shape(x))))
    return total if reduction == "sum" else derive(graph, "t / n", t=total, n=prod(graph.shape(x)))


def _check_reduction(reduction: str) -> None:
    if reduction not in ("none", "sum", "mean"):
        raise SpecError(f"reduction {reduction!r:.40}: expected none, sum or mean")


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise SpecError(f"{name}: expected shape {list(expected)}, got {list(shape)}")


# Name -> (graph, result of the model, target) -> the loss.
LOSSES: Mapping[str, Callable[[GraphBuilder, str, str], str]] = MappingProxyType(
    {
        "cross_entropy": add_cross_entropy,
        "mse": add_mean_squares,
        "bce_with_logits": add_binary_cross_entropy,
    }
)
