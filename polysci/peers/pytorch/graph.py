"""Calls compiled by TorchScript: convolutions by oneDNN Graph, and others without Python's cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from polysci.peers.pytorch.operands import Step

_RUNS: Final = 3  # TorchScript watches the first call and compiles in the second


def compile_graph(torch: Any, steps: Sequence[Step], x: Any) -> Step:
    """One function for all steps, the convolution among them by oneDNN Graph.

    It keeps the compiled primitive and the packed weights, where other calls look primitives up in
    caches each time: about 7 us a call in place of 22. Raises RuntimeError where oneDNN Graph
    leaves the convolution to others.
    """

    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    torch.jit.enable_onednn_fusion(True)
    try:
        script = torch.jit.trace(run, x, check_trace=False)
        for _ in range(_RUNS):
            script(x)
        graph = str(torch.jit.last_executed_optimized_graph())
    finally:
        torch.jit.enable_onednn_fusion(False)
    if "oneDNNFusionGroup" not in graph:
        raise RuntimeError("oneDNN Graph does not take this convolution")
    return script  # type: ignore[no-any-return]


def script_call(torch: Any, expression: str, packed: Any) -> Step:
    """The function of ``x`` that an expression of it and of ``self.packed`` is.

    Handing an object with packed weights from Python to PyTorch takes 9 us a call.
    """
    owner = type("Packed", (torch.nn.Module,), {})()  # TorchScript compiles a class only once
    owner.packed = packed
    script = torch.jit.script(owner)
    script.define(f"def forward(self, x):\n    return {expression}\n")
    return script.forward  # type: ignore[no-any-return]


def compile_module(torch: Any, steps: Sequence[Step], x: Any) -> Step:
    """Steps compiled by inductor, its constants frozen, products tuned by trial.

    Raises RuntimeError for what it cannot compile.
    """
    from torch._inductor import config

    torch._dynamo.reset()  # it compiles a function only some times

    def forward(self: Any, value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    module = type("Compiled", (torch.nn.Module,), {"forward": forward})()
    compiled = torch.compile(module.eval(), mode="max-autotune-no-cudagraphs", dynamic=False)
    with config.patch(freezing=True):
        compiled(x)
    return compiled  # type: ignore[no-any-return]
