"""A bit for each result of a ReLU: what its gradient needs to know of it.

The layer or loop that ends in a ReLU writes the bits beside its results, and what was zeroed by
``y > 0`` reads them: 32 times fewer bytes. A gradient that a layer makes is zeroed there, before it
is stored for the first time. It needs the layers' schedules: tiles must not share bytes of a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from polysci.loop_ir.expressions import Apply, Expr, Load, Number, reductions, rewrite, walk
from polysci.program.passes.buffers import BufferPlace, PlacedProgram, alike
from polysci.program.passes.fusion import Fusion
from polysci.program.passes.relations import iterators, pointwise
from polysci.program.stages import BIT, LayerStage, LoopStage, Stage, Value

REALS = ("float32", "bf16")
Refuse = Callable[[LayerStage, PlacedProgram], str]  # why a layer's code knows no masks, or empty


def mask_relus(placed: PlacedProgram, refuse: Refuse) -> tuple[PlacedProgram, tuple[Fusion, ...]]:
    """The program with masks where gradients compare results of a ReLU with 0, and all considered.

    ``refuse`` says why the code of a layer cannot read or write a mask.
    """
    masker = _Masker(placed, refuse, [*placed.program.stages])
    for position in range(len(masker.stages)):
        stage = masker.stages[position]
        if isinstance(stage, LoopStage) and not reductions(stage.expr):
            masker.use_masks(position, stage)
    stages = tuple(stage for stage in masker.stages if stage is not None)
    values = {**placed.program.values, **masker.values}
    program = replace(placed.program, stages=stages, values=values)
    return PlacedProgram(program, {**placed.places, **masker.places}), tuple(masker.considered)


@dataclass(slots=True)
class _Masker:
    placed: PlacedProgram
    refuse: Refuse
    stages: list[Stage | None]
    values: dict[str, Value] = field(default_factory=dict)
    places: dict[str, BufferPlace] = field(default_factory=dict)
    considered: list[Fusion] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)  # result of a ReLU -> its mask, or none

    def use_masks(self, position: int, stage: LoopStage) -> None:
        """Masks instead of comparisons in a stage, and it inside the layer before it."""
        domain = iterators(self.placed.program.values[stage.output].shape)
        for part in [*walk(stage.expr)]:
            match part:
                case Apply("greater", (Load(y) as load, Number(0))) if self.dense(stage.output):
                    shape = self.placed.program.values[y].shape
                    mask = self.mask_of(y) if pointwise(load, domain, shape) else ""
                    if mask and alike(self.places[mask], self.place(stage.output), shape):
                        read = Load(mask, load.index)
                        expr = rewrite(stage.expr, lambda it: read if it == part else it)  # noqa: B023
                        stage = self.stages[position] = replace(stage, expr=expr)
        match stage.expr:
            case Apply("select", (Load(mask), Load(x) as load, Number(0))) if mask in self.places:
                if pointwise(load, domain, self.placed.program.values[x].shape):
                    self.absorb(position, stage, mask, x)

    def absorb(self, position: int, stage: LoopStage, mask: str, x: str) -> None:
        """Let the layer that makes x zero it where that stands: its weights change behind it."""
        at, layer = self.maker(x)
        readers = [it for it in self.stages if it is not None and x in it.inputs]
        if not isinstance(layer, LayerStage) or len(readers) > 1 or self.maker(mask)[0] > at:
            return
        gated = replace(
            layer, name=f"{layer.name} + {stage.name}", y=replace(layer.y, tensor=stage.output),
            gate=mask,
        )  # fmt: skip
        refusal = "it clamps or masks already" if layer.clamp or layer.gate or layer.mask else ""
        same = alike(self.place(x), self.place(stage.output), self.placed.program.values[x].shape)
        if not refusal and not (same and self.dense(x)):
            refusal = "its result lies otherwise than the mask"
        if self.note(layer, stage, x, refusal or self.refuse(gated, self.placed)):
            self.stages[at], self.stages[position] = gated, None

    def note(self, first: Stage, second: Stage, tensor: str, refusal: str) -> bool:
        """Remember a decision; true where it is to be."""
        saved = 2 * self.placed.program.values[tensor].bytes
        self.considered.append(Fusion(first.name, second.name, tensor, saved, refusal))
        return not refusal

    def mask_of(self, y: str) -> str:
        """The mask of the results of a ReLU, which their maker writes from now on; or empty."""
        if y not in self.known:
            self.known[y] = self.add_mask(y)
        return self.known[y]

    def add_mask(self, y: str) -> str:
        at, maker = self.maker(y)
        if not isinstance(maker, LayerStage | LoopStage) or not self.dense(y):
            return ""
        masked = replace(maker, mask=f"{y}.mask")
        if isinstance(masked, LayerStage):
            relu = masked.clamp == (0.0, inf)
            refusal = self.refuse(masked, self.placed) if relu else "it ends in no ReLU"
        else:
            refusal = "" if _ends_in_relu(masked.expr) else "it ends in no ReLU"
        if refusal:
            return ""
        self.stages[at] = masked
        value = self.placed.program.values[y]
        self.values[masked.mask] = replace(value, name=masked.mask, dtype=BIT)
        self.places[masked.mask] = BufferPlace(masked.mask, 0, self.place(y).strides, BIT)
        return masked.mask

    def maker(self, tensor: str) -> tuple[int, Stage | None]:
        """The only stage that writes a tensor, and where it stands."""
        makers = [
            (at, stage) for at, stage in enumerate(self.stages)
            if stage is not None and tensor in stage.outputs
        ]  # fmt: skip
        return makers[0] if len(makers) == 1 else (-1, None)

    def place(self, tensor: str) -> BufferPlace:
        return self.placed.places[tensor]

    def dense(self, tensor: str) -> bool:
        """Whether it is a buffer of reals, eight or a multiple of them side by side."""
        program, place = self.placed.program, self.place(tensor)
        value = program.values[tensor]
        around = tensor in program.border() or tensor in program.constants
        if around or value.dtype not in REALS or not value.size:
            return False
        own = BufferPlace(tensor, 0, value.strides, value.dtype)
        rows = [size for size, step in zip(value.shape, value.strides, strict=True) if step == 1]
        return place == own and max(rows, default=1) % 8 == 0


def _ends_in_relu(expr: Expr) -> bool:
    match expr:
        case Apply("relu", _):
            return not reductions(expr)
        case _:
            return False
