"""Mixtures of experts of `transformers` in a form that torch.export captures.

Their blocks visit the experts that some token chose, in a loop over data, and gather those tokens.
Here each expert is computed for all tokens, where any chose it, and counts for those that did.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

import torch
from torch.nn import functional

from polysci.frontends.pytorch.shape_ops import CHOOSE
from polysci.torch.library import LIBRARY, define

TOKENS: Final = 5  # on which both forms of a block are compared
_NEAR: Final = 2.0**-12  # of their largest result


def _choose(condition: Any, then: Any, otherwise: Any) -> Any:
    return torch.where(condition, then, otherwise)


_OPERANDS: Final = "(Tensor condition, Tensor then, Tensor otherwise) -> Tensor"
define(CHOOSE.removeprefix("polysci::") + _OPERANDS, _choose, "CompositeExplicitAutograd")
torch.library.register_fake(
    CHOOSE, lambda condition, then, otherwise: torch.empty_like(then), lib=LIBRARY
)


def compute_all_experts(module: Any) -> None:
    """Give blocks inside a module, which is a copy, the form without a loop over data.

    Only those that compute the same in both forms, on a few tokens; others stay as they are.
    """
    for part in module.modules():
        if _chooses_experts(part) and _agrees(part):
            part.forward = MethodType(_compute_block, part)


def _chooses_experts(part: Any) -> bool:
    """Tell whether a module has a linear router and as many experts as that has results."""
    experts, gate = getattr(part, "experts", None), getattr(part, "gate", None)
    return (
        isinstance(experts, torch.nn.ModuleList) and isinstance(gate, torch.nn.Linear)
        and gate.out_features == len(experts) and isinstance(getattr(part, "top_k", None), int)
    )  # fmt: skip


def _agrees(part: Any) -> bool:
    """Tell whether a block computes the same in both forms."""
    width = part.gate.in_features
    waves = torch.sin(torch.arange(TOKENS * width, dtype=torch.float32) * 1.7)
    x = waves.reshape(1, TOKENS, width).to(part.gate.weight)
    try:
        with torch.no_grad():
            expected, found = part(x.clone()), _compute_block(part, x)
    except Exception:  # of many kinds, for a block of other attributes
        return False
    if type(expected) is not type(found) or len(expected) != len(found):
        return False
    return all(
        isinstance(own, torch.Tensor) and own.shape == other.shape
        and bool((own - other).abs().max() <= _NEAR * own.abs().max())
        for own, other in zip(expected, found, strict=True)
    )  # fmt: skip


def _compute_block(self: Any, hidden_states: Any) -> tuple[Any, Any]:
    """Compute what such a block does of x (batch, length, channels); with the router's results."""
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    logits = self.gate(tokens)
    shares, chosen = torch.topk(functional.softmax(logits, 1, dtype=torch.float), self.top_k)
    if getattr(self, "norm_topk_prob", True):
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(tokens.dtype)
    total = torch.zeros_like(tokens)
    for number, expert in enumerate(self.experts):
        mine = chosen == number
        share = torch.where(mine, shares, 0).sum(-1, keepdim=True)
        has_any = mine.any(-1, keepdim=True)
        made = torch.where(has_any, expert(tokens) * share, 0)
        total = total + torch.ops.polysci.choose(mine.any(), made, torch.zeros_like(made))
    if hasattr(self, "shared_expert"):
        weight = functional.sigmoid(self.shared_expert_gate(tokens))
        total = total + weight * self.shared_expert(tokens)
    return total.reshape(hidden_states.shape), logits
