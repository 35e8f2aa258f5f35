"""Steps of optimizers as nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from polysci.border.arguments import check_real, check_type
from polysci.errors import SpecError
from polysci.graph.builder import GraphBuilder
from polysci.graph.formulas import Part, derive


@runtime_checkable
class Optimizer(Protocol):
    """The rule by which a step changes parameters.

    ``states`` are the tensors of a parameter's shape, at first of zeros, that it keeps for each.
    """

    @property
    def lr(self) -> float:
        """The learning rate."""
        ...

    @property
    def states(self) -> tuple[str, ...]: ...

    def factors(self, graph: GraphBuilder, step: str) -> Mapping[str, Part]:
        """Add what all parameters of a step share; ``step`` is an int64 that counts from 1."""
        ...

    def update(
        self, graph: GraphBuilder, parameter: str, gradient: str, states: Sequence[str],
        factors: Mapping[str, Part],
    ) -> tuple[str, ...]:  # fmt: skip
        """Return what replaces the parameter, then its states.

        ``factors`` are those of the step, the learning rate ``lr``, and ``clip``, by which
        gradients are multiplied.
        """
        ...


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent; ``nesterov`` momentum needs some, and no dampening."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Raises TypeError for what is no number, SpecError for numbers below 0."""
        _check(self)
        if self.nesterov and (not self.momentum or self.dampening):
            raise SpecError("SGD: nesterov needs momentum and no dampening")

    @property
    def states(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def factors(self, graph: GraphBuilder, step: str) -> Mapping[str, Part]:
        if not self.momentum or not self.dampening:
            return {"share": 1.0}
        one = graph.number(1.0)  # the first step takes the whole gradient
        text = "select(step <= 1, one, one * share)"
        return {"share": derive(graph, text, step=step, one=one, share=1 - self.dampening)}

    def update(
        self, graph: GraphBuilder, parameter: str, gradient: str, states: Sequence[str],
        factors: Mapping[str, Part],
    ) -> tuple[str, ...]:  # fmt: skip
        names = {"p": parameter, "g": gradient, **factors}
        own = _gradient(factors, self.weight_decay)
        if not self.momentum:
            return (derive(graph, f"p - {own} * lr", **names),)
        share = "" if factors["share"] == 1 else " * share"
        text = f"m * {self.momentum!r} + {own}{share}"
        kept = derive(graph, text, m=states[0], **names)
        step = f"{own} + m * {self.momentum!r}" if self.nesterov else "m"
        return derive(graph, f"p - ({step}) * lr", m=kept, **names), kept


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba (2014); with ``decoupled`` weight decay AdamW, Loshchilov and Hutter (2017)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        """Raises TypeError for what is no number, SpecError below 0 and for betas from 1 on."""
        _check(self)
        check_type("Adam: betas", self.betas, tuple, list)
        for at, beta in enumerate(self.betas):
            check_real(f"Adam: betas[{at}]", beta)
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise SpecError(f"Adam: betas={self.betas!r:.80}: expected two from 0 to below 1")

    @property
    def states(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def factors(self, graph: GraphBuilder, step: str) -> Mapping[str, Part]:
        """The inverses of the corrections of both averages, in double until they are done."""
        count = graph.add("cast", (step,), graph.shape(step), "float64")
        values = dict[str, Part]()
        texts = ("1 / (1 - beta ** t)", "1 / sqrt(1 - beta ** t)")
        for name, beta, text in zip(("first", "second"), self.betas, texts, strict=True):
            base = graph.number(beta, "float64")
            exact = derive(graph, text, beta=base, t=count)
            values[name] = graph.add("cast", (exact,), graph.shape(step), "float32")
        return values

    def update(
        self, graph: GraphBuilder, parameter: str, gradient: str, states: Sequence[str],
        factors: Mapping[str, Part],
    ) -> tuple[str, ...]:  # fmt: skip
        names = {"p": parameter, "g": gradient, **factors}
        own = _gradient(factors, 0.0 if self.decoupled else self.weight_decay)
        first, second = self.betas
        m = derive(graph, f"m * {first!r} + {own} * {1 - first!r}", m=states[0], **names)
        text = f"v * {second!r} + (g2 := {own}) * g2 * {1 - second!r}"
        v = derive(graph, text, v=states[1], **names)
        kept = f"(p - p * (lr * {self.weight_decay!r}))" if self.decoupled else "p"
        text = f"{kept} - lr * first * m / (sqrt(v) * second + {self.eps!r})"
        return derive(graph, text, m=m, v=v, **names), m, v


def limit_norm(graph: GraphBuilder, gradients: Sequence[str], most: float) -> str:
    """Return the factor of all gradients that makes their joint Euclidean norm at most ``most``.

    PyTorch's ``clip_grad_norm_``. Raises SpecError for a norm that is not positive.
    """
    check_real("clip_norm", most)
    if not most:
        raise SpecError("clip_norm=0: expected a positive number")
    squares = [
        graph.total(derive(graph, "g * g", g=name), range(len(graph.shape(name))))
        for name in gradients
    ]
    total = graph.add("sum", squares, ()) if len(squares) > 1 else squares[0]
    return derive(graph, "min(limit / (sqrt(t) + 1e-6), 1)", t=total, limit=most)


def _gradient(factors: Mapping[str, Part], decay: float) -> str:
    """The formula of the gradient with its factor and weight decay."""
    own = "g * clip" if "clip" in factors else "g"
    return f"({own} + p * {decay!r})" if decay else f"({own})"


def _check(optimizer: SGD | Adam) -> None:
    for field in fields(optimizer):
        value, name = getattr(optimizer, field.name), f"{type(optimizer).__name__}: {field.name}"
        if field.type == "bool":
            check_type(name, value, bool)
        elif field.type == "float":
            check_real(name, value)
