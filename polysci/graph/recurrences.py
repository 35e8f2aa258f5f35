"""What a recurrent node keeps for its backward pass, and the node of that pass."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# (dY, peepholes, R, dY_h, lengths, dY_c, kept tensors of each direction) -> (dh, dc, gradients of
# what the gates' functions take, by x and where they differ by h, of each direction). Attributes
# are those of the recurrent node, and ``cell``, its type.
RECURRENT_GRADIENT = "recurrent_gradient"

# By type of node, a letter for each gate, in ONNX's order of their rows; the attribute ``order``
# has the same letters in another one.
ORDERS: Mapping[str, str] = MappingProxyType({"lstm": "iofg", "gru": "zrn", "rnn": "n"})

# By type of node, a letter for each tensor that a recurrent node makes for its backward pass, when
# it has such outputs behind its first three, direction by direction. Each is (steps, batch, hidden)
# or with ``layout`` (batch, steps, hidden). Letters of gates: what their functions made; h and d:
# hidden state and memory before the step; c: memory behind it; q: what r multiplies, or with
# ``linear_before_reset=0`` what R does of the last gate.
KEPT: Mapping[str, str] = MappingProxyType({"lstm": "iofgcdh", "gru": "zrnqh", "rnn": "nh"})
FIRST_KEPT = 3  # outputs before them
