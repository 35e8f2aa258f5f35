"""Networks that read tokens and count them: a prompt by the longest entries, then one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.network.compiled import Network
from polysci.numerics.dtypes import array_type

Array = NDArray[Any]


class Generation:
    """A sequence of tokens, of which a network's state counts those that it has read.

    ``networks`` are the entries of a library that share state, or one. Each reads tokens alone,
    another number of them, one of them a single one; ``position`` counts those read so far,
    ``capacity`` is how many the state has room for, None for any number. Results are those of the
    last token. Raises SpecError for other networks.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        first = networks[0]
        counters = [port for port in first.runner.state if port.counts]
        if not counters:
            raise SpecError(
                f"{first.name}: nothing counts its tokens; compile with positions=INPUT, the input "
                "of their positions"
            )
        lengths = [_length(network) for network in networks]
        if 1 not in lengths:
            raise SpecError(f"{first.name}: it reads {lengths} tokens at a time, and never one")
        pairs = sorted(zip(lengths, networks, strict=True), key=lambda pair: -pair[0])
        self._entries, self._state = pairs, first.state
        self._counter, self.capacity = counters[0].name, counters[0].most
        self._first = first

    @property
    def position(self) -> int:
        return int(self._state[self._counter])

    @guard
    def reset(self) -> None:
        """Begin another sequence."""
        self._first.reset()

    @guard
    def prefill(self, tokens: Sequence[int] | Array) -> Array:
        """Read tokens; return the results of the last. SpecError where there are too many."""
        listed = np.asarray(tokens).reshape(-1)
        if not listed.size:
            raise SpecError("tokens: expected at least one, got none")
        if self.capacity is not None and self.position + listed.size > self.capacity:
            raise SpecError(
                f"tokens: {listed.size} behind {self.position}: the state has room for "
                f"{self.capacity}"
            )
        at, results = 0, np.empty(0)
        for length, network in self._entries:
            (port,), left = network.inputs, listed.size - at
            for _ in range(left // length):
                part = listed[at : at + length].reshape(port.shape)
                results = network(np.ascontiguousarray(part, array_type(port.dtype)))
                at += length
        last: Array = results.reshape(-1, results.shape[-1])[-1]
        return last

    def decode(self, token: int) -> Array:
        """Read one token; return its results."""
        return self.prefill([token])

    def next(
        self, tokens: Sequence[int] | Array, temperature: float = 0.0, top_k: int = 0,
        uniform: float = 0.0,
    ) -> int:  # fmt: skip
        """Read tokens; return one to follow them, as ``sample`` chooses it."""
        return sample(self.prefill(tokens), temperature, top_k, uniform)

    def generate(
        self, tokens: Sequence[int] | Array, count: int,
        choose: Callable[[Array], int] | None = None, *,
        temperature: float = 0.0, top_k: int = 0, seed: int | None = None,
    ) -> Iterator[int]:  # fmt: skip
        """Read a prompt, then yield ``count`` tokens, each chosen by the results before it.

        ``choose`` returns the number of a token for results; by default ``sample`` does, at a
        ``temperature``, by random numbers from ``seed`` on.
        """
        random = np.random.default_rng(seed)
        results = self.prefill(tokens)
        for left in reversed(range(count)):
            if choose is None:
                token = sample(results, temperature, top_k, random.random())
            else:
                token = choose(results)
            yield token
            if left:
                results = self.decode(token)


@guard
def sample(
    results: Array, temperature: float = 0.0, top_k: int = 0, uniform: float = 0.0
) -> int:  # fmt: skip
    """Return the number of a token, chosen by the results of all: one axis, of real numbers.

    With temperature 0 it is the first of the largest. Else each token has a share,
    ``exp(result / temperature)``, and the first one is chosen at which their sum passes ``uniform``
    of the whole, a random number from 0 to below 1. ``top_k`` above 0: of tokens whose result is
    among so many largest. Raises SpecError for numbers out of range.
    """
    for name, value, most in (
        ("temperature", temperature, np.inf), ("top_k", top_k, np.inf), ("uniform", uniform, 1),
    ):  # fmt: skip
        if not 0 <= value < most:
            raise SpecError(f"{name} {value!r:.40}: expected a number from 0 to below {most}")
    best = int(results.argmax())
    if not temperature:
        return best
    kept = np.arange(results.size)
    if 0 < top_k < results.size:
        kept = np.flatnonzero(results >= np.partition(results, -top_k)[-top_k])
    shares = np.exp((results[kept].astype(np.float64) - results[best]) / temperature)
    passed = np.cumsum(shares)
    at = int(np.searchsorted(passed, uniform * passed[-1], side="right"))
    return int(kept[at]) if at < kept.size else best


def _length(network: Network) -> int:
    """Return how many tokens a network reads. Raises SpecError where it reads anything else."""
    inputs, outputs = network.inputs, network.outputs
    if len(inputs) != 1 or len(outputs) != 1 or array_type(inputs[0].dtype).kind not in "iu":
        names = ", ".join(port.name for port in (*inputs, *outputs))
        raise SpecError(
            f"{network.name}: expected one input of tokens and one output, got {names:.200}"
        )
    return prod(inputs[0].shape)
