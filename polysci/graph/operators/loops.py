"""Loops of a model: the stages of one step, repeated while there are steps and it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polysci.graph.graph import LOOP_BEGIN, LOOP_END, Node
from polysci.graph.operators.builder import Builder, Steps, slice_at, step_index, whole
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Load, Number, Position, apply, axis, combine
from polysci.program.control import BREAK, STEP, BranchStage, CarriedTensor, StepView
from polysci.program.stages import LoopStage, Stage

_NUMBER = Position(combine({STEP: 1}))


def begin(build: Builder, node: Node) -> None:
    """The number of the step; what follows, until LOOP_END, are stages of a step."""
    build.check_numbers(node, *node.inputs[2:], *node.inputs[:1])
    build.define(node, _NUMBER)


def end(build: Builder, node: Node) -> None:
    """Take the stages of a step out of those made so far, and repeat them."""
    first = build.graph.makers()[node.inputs[0]]
    at = next(at for at, stage in enumerate(build.stages) if node.inputs[0] in stage.outputs)
    members, build.stages = build.stages[at:], build.stages[:at]
    loop = _LoopSteps(build, str(node), int(first.attributes["count"]), node, first)
    loop.add(members)


@dataclass(slots=True)
class _LoopSteps(Steps):
    """A loop of a model on its way; ``last`` are what ends a step."""

    node: Node
    first: Node
    last: list[Stage] = field(default_factory=list)

    @property
    def states(self) -> int:
        return int(self.first.attributes["states"])

    def add(self, members: Sequence[Stage]) -> None:
        build, node, first = self.build, self.node, self.first
        breaks = bool(node.inputs[1])
        inner = first.outputs[1 : 1 + self.states]
        triples = zip(inner, first.inputs[2:], node.inputs[2:], node.outputs, strict=False)
        for now, before, following, state in triples:
            self.keep(now, self.load(before), following, state)
        for name, source, (at, back) in zip(
            first.outputs[1 + self.states :], first.inputs[2 + self.states :],
            first.attributes["slices"], strict=True,
        ):  # fmt: skip
            place = step_index(self.count, backwards=back)
            self.reads.append(StepView(name, source, slice_at(place, at, len(build.shape(source)))))
        head = self.condition() if breaks else []
        counted = self.counter() if breaks and node.attributes["stacked"] else ""
        stacked = self.stack(counted)
        kept, moved = self.split(members)
        build.stages += moved
        self.repeat([*head, *kept, *self.last])
        build.stages += stacked

    def load(self, name: str) -> Load:
        return whole(self.build, name)

    def keep(self, now: str, before: Expr, following: str, state: str) -> None:
        """Carry what the next step reads as ``now``, by copies that fusion leaves in place."""
        build = self.build
        build.stages.append(LoopStage(self.name, state, before))
        after = build.fresh(f"{state}.next", build.shape(state), build.dtype(state))
        self.carried.append(CarriedTensor(now, after, state))
        self.last.append(LoopStage(self.name, after, self.load(following)))

    def condition(self) -> list[Stage]:
        """Add the condition that ends the loop before a step."""
        build, (trips, going) = self.build, self.first.inputs[:2]
        now, state, more = (
            build.fresh(f"{going}.{word}", (), "bool") for word in ("now", "state", "more")
        )
        self.keep(now, self.load(going), self.node.inputs[1], state)
        if not trips:
            return [BranchStage(self.name, now, BREAK)]
        expr = apply("and", apply("less", _NUMBER, self.load(trips)), self.load(now))
        return [LoopStage(self.name, more, expr), BranchStage(self.name, more, BREAK)]

    def counter(self) -> str:
        """A state that is the number of steps."""
        build, state = self.build, self.node.outputs[-1]
        now = build.fresh(f"{state}.now", (), "int64")
        after = build.fresh(f"{state}.next", (), "int64")
        build.stages.append(LoopStage(self.name, state, Number(0)))
        self.carried.append(CarriedTensor(now, after, state))
        self.last.append(LoopStage(self.name, after, Position(combine({STEP: 1}, 1))))
        return state

    def stack(self, counted: str) -> list[Stage]:
        """Parts go where they belong; then 0 is written behind as many as there were."""
        build, after = self.build, list[Stage]()
        parts = self.node.inputs[2 + self.states :]
        outputs = self.node.outputs[self.states : self.states + len(parts)]
        for part, output, (at, back) in zip(
            parts, outputs, self.node.attributes["stacked"], strict=True
        ):
            outer, shape = output, build.shape(output)
            if counted:
                outer = build.fresh(f"{output}.all", shape, build.dtype(output))
                here = apply("less", Position(axis(at)), Load(counted, ()))
                after.append(LoopStage(
                    self.name, output, apply("select", here, self.load(outer), Number(0))
                ))  # fmt: skip
            inner = build.fresh(f"{output}.slice", build.shape(part), build.dtype(output))
            place = step_index(self.count, backwards=back)
            self.writes.append(StepView(inner, outer, slice_at(place, at, len(shape))))
            self.last.append(LoopStage(self.name, inner, self.load(part)))
        return after

    def split(self, members: Sequence[Stage]) -> tuple[list[Stage], list[Stage]]:
        """The stages of a step, and those that make the same in every step."""
        varying = {*self.first.outputs}
        while True:
            size = len(varying)
            for stage in members:
                if varying & {*stage.inputs, *stage.outputs}:
                    varying |= {*stage.outputs}
            if len(varying) == size:
                break
        kept = [stage for stage in members if varying & {*stage.outputs}]
        read = {name for stage in (*kept, *self.last) for name in stage.inputs}
        kept = [
            stage
            for stage in kept
            if stage.outputs != self.first.outputs[:1] or read & {*stage.outputs}
        ]
        return kept, [stage for stage in members if not varying & {*stage.outputs}]


ROWS = (
    Operator(LOOP_BEGIN, "", begin, stepwise=True),
    Operator(LOOP_END, "", end),
)  # fmt: skip
