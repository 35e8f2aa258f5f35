"""The process that runs cases: ``python -m tests.support.campaign.child``; and its parent's end."""

import traceback
from typing import Any

import polysci
from polysci.errors import CheckError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.problem import Problem
from polysci.runtime.primitive import Primitive
from polysci.runtime.worker_process import WorkerProcess, serve
from tests.support.campaign.axes import Case
from tests.support.campaign.layers import LayerCase
from tests.support.campaign.memory import Memory
from tests.support.campaign.networks import NetworkCase
from tests.support.campaign.operands import operands_of
from tests.support.flags import optimise
from tests.support.scripts import GIL

SECONDS = 120.0  # for one case, on a busy machine
REFUSED = "runs backwards"  # an operand that no kernel reads where it lies, nor a copy


class Service:
    """What the child is asked."""

    def run(self, case: str) -> dict[str, Any]:
        """``{"wrong": text}``, empty where the case is right."""
        try:
            return {"wrong": RUN[case.split(" ", 1)[0]](case)}
        except UnsupportedError as error:  # a nest whose copy would run backwards, and no other
            refused = REFUSED in str(error) and "operator=nest" in case
            return {"wrong": "" if refused else traceback.format_exc(limit=-4)}
        except Exception:  # of whatever kind: a report of it is a finding
            return {"wrong": traceback.format_exc(limit=-4)}


def run_layer(text: str) -> str:
    """What is wrong with a case: with building, calling or the results; empty if nothing is."""
    case = LayerCase.parse(text)
    optimise(case.flags)
    problem = case.problem_of()
    if without_images := 0 in problem.y_shape:
        problem = problem.with_batch(1)
    words: dict[str, Any] = {"algorithm": case.algorithm}
    if case.schedule == "random":
        words = {"schedule": case.random_schedule()}
    primitive = polysci.compile(
        case.problem, "estimate", case.threads, layout=problem.layout or None, dtype=case.dtype,
        isa=case.isa, **words,
    )  # fmt: skip
    try:
        empty = without_images or (case.images == "none" and problem.batched)
        wrong = call(case, primitive, problem, empty)
    except Exception:  # with the schedule beside it
        wrong = traceback.format_exc(limit=-4)
    return f"schedule {primitive.schedule}: {wrong}" if wrong else ""


def call(case: LayerCase, primitive: Primitive, problem: Problem, empty: bool) -> str:
    """Two calls, of which the second finds what the first left behind."""
    given = operands_of(case, problem, primitive.schedule)
    memory = Memory(case.side)
    x = memory.hold("x", given.x[:0] if empty else given.x)
    w = memory.hold("w", given.w)
    arrays = {name: memory.hold(name, array) for name, array in given.arrays.items()}
    if empty and "residual" in arrays:
        arrays["residual"] = arrays["residual"][:0]
    y_shape = (0, *problem.y_shape[1:]) if empty else problem.y_shape
    y_type = precision_named(problem.dtype).y.numpy
    with memory.reserve():
        constant = problem.w_kind == "constant"
        wp = primitive.pack_weights(w, given.x_zero) if constant else w
        for _ in range(2):
            words = arrays | given.words
            if case.out == "residual" and "residual" in arrays and not empty:
                words["out"] = memory.empty("out", y_shape, y_type)
                words["out"][...] = arrays["residual"]
                words["residual"] = words["out"]
            elif case.out != "new":
                words["out"] = memory.empty("out", y_shape, y_type)
            y = primitive(x, wp, **words)
            if y.shape != y_shape or y.dtype != y_type:
                return f"result: {y.dtype}{y.shape}, not {y_type}{y_shape}"
            if not empty and (fault := given.fault(y)):
                return fault
            if outside := memory.trespass():
                return outside
    return ""


KINDS: dict[str, type[Case]] = {kind.KIND: kind for kind in (LayerCase, NetworkCase)}
RUN = {LayerCase.KIND: run_layer, NetworkCase.KIND: lambda text: NetworkCase.parse(text).wrong()}


class Campaign:
    """The parent's end: a process for all cases, another one after each that killed it."""

    def __init__(self) -> None:
        warnings = f"error,ignore:{GIL}:RuntimeWarning"
        env = {"PYTHONWARNINGS": warnings, "OMP_WAIT_POLICY": "passive"}
        module = "tests.support.campaign.child"
        self._worker = WorkerProcess(module, threads=3, env=env, timeout=SECONDS)

    def close(self) -> None:
        self._worker.close()

    def wrong(self, case: Case) -> str:
        """What is wrong with a case, and the command that repeats it; empty if nothing is."""
        self._worker.start()
        try:
            told = str(self._worker.ask({"op": "run", "case": str(case)})["wrong"])
        except CheckError as error:  # it crashed or hung
            told = str(error)
            self._worker.close()
        return f"{told.strip()}\n  python -m tests.support.campaign {case}" if told else ""


if __name__ == "__main__":
    serve(Service(), ("run",))
