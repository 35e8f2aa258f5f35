"""Row fusions in groups: results in the interpreter, and barriers that isl and races ask for."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from polysci.errors import IllegalScheduleError
from polysci.frontends.onnx import reference
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import Barrier, LoopStatement, walk_statements
from polysci.lower.mapped.legality import check_groups
from polysci.program.passes import table
from tests.support.device_cases import integers
from tests.support.group_fusions import InterpretedFusion, whole_chain
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals

WEIGHTS = {"w": integers((8, 20), 1), "v": integers((20, 12), 2)}


def products() -> onnx.ModelProto:
    """Two products, and a function between them that is no epilogue."""
    nodes = [node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b v", "y")]
    return model(nodes, {"x": (13, 8)}, {"y": None}, WEIGHTS)


def attention() -> onnx.ModelProto:
    """A product, a softmax, whose input three loops read, and a product."""
    nodes = [node("MatMul", "x w", "a"), node("Softmax", "a", "s", axis=-1),
             node("MatMul", "s v", "y")]  # fmt: skip
    weights = {"w": reals(8, 20, seed=1), "v": reals(20, 12, seed=2)}
    return model(nodes, {"x": (13, 8)}, {"y": None}, weights)


def residuals() -> onnx.ModelProto:
    """Layers that add the input, and what groups hold, to what they hold and to the output."""
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a v", "b"), node("Add", "b x", "c"),
             node("MatMul", "c u", "d"), node("Add", "d c", "e"), node("MatMul", "e u", "f"),
             node("Add", "f c", "y")]  # fmt: skip
    weights = {"w": integers((8, 12), 1), "v": integers((12, 8), 2), "u": integers((8, 8), 3)}
    return model(nodes, {"x": (13, 8)}, {"y": None}, weights)


def images() -> onnx.ModelProto:
    """Rows of three images, of which blocks have parts, and a filter reads those of its own one."""
    padded = {"pads": [1, 1, 1, 1]}
    nodes = [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Conv", "t w", "a", **padded),
             node("Abs", "a", "b"), node("Conv", "b v", "c", strides=[2, 2], **padded),
             node("Transpose", "c", "y", perm=[0, 2, 3, 1])]  # fmt: skip
    weights = {"w": integers((6, 3, 3, 3), 1), "v": integers((4, 6, 3, 3), 2)}
    return model(nodes, {"x": (3, 6, 5, 3)}, {"y": None}, weights)


def without(number: int) -> Callable[[LoopStatement], LoopStatement | None]:
    """Leave out a barrier of the kernel."""
    seen = list[LoopStatement]()

    def change(part: LoopStatement) -> LoopStatement | None:
        if not isinstance(part, Barrier):
            return part
        seen.append(part)
        return None if len(seen) - 1 == number else part

    return change


@pytest.fixture(params=[1, 4])
def height(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows of a block; the last block has fewer."""
    monkeypatch.setattr(table, "fuse_rows", whole_chain(request.param))
    return request.param


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [products, attention, residuals, images])
def test_results(make: Callable[[], onnx.ModelProto], height: int) -> None:
    """Work-items in any order between barriers; every read is of what was written."""
    network = InterpretedFusion.of(make())
    x = integers(network.code.placed.program.values["x"].shape, 9)
    assert network.fusion.height == height
    expected = reference.run(read(make()), {"x": x})["y"]
    for seed in (0, 1):
        result = network.run(x, seed)
        assert np.allclose(result, expected, rtol=1e-5, atol=1e-6 if make is attention else 0)


def test_a_barrier_that_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By isl, which proves all others needed too, and by the interpreter as a race."""
    monkeypatch.setattr(table, "fuse_rows", whole_chain(4))
    network = InterpretedFusion.of(products())
    check_groups(network.kernel.body)
    barriers = sum(isinstance(it, Barrier) for it in walk_statements(network.kernel.body))
    assert barriers == len(network.fusion.members) - 1
    for number in range(barriers):
        broken = network.change(without(number))
        with pytest.raises(IllegalScheduleError, match="held_float32: work-items"):
            check_groups(broken.kernel.body)
        with pytest.raises(MemoryFaultError):
            broken.run(integers((13, 8), 9))
