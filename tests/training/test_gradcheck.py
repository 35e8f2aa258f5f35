"""gradcheck of a single problem: its gradient problems beside central differences."""

import numpy as np
import pytest

from polysci.errors import CheckError, UnsupportedError
from polysci.ops import parse_problem
from polysci.ops.convolution_gradients import BackwardWeights
from polysci.training import gradcheck

PROBLEMS = (
    "mb2ic4ih7oc6kh3ph1", "g2mb1ic4ih7oc6kh3sh2ph1", "mb1ic3ih9oc4kh3dh1", "mb0ic3ih5oc4kh3",
    "conv1d mb2ic4iw9oc3kw3sw2", "conv3d mb1ic2id5oc3kd3pd1", "deconv mb2ic3ih4oc5kh3sh2ph1",
    "mm:5x7x4", "mm:3:5x7x4", "mm:5x7x4 b=constant", "mm:5x7x4 tb", "mm:5x7x4 ta",
    "mm:5x7x4 ta to",
)  # fmt: skip


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_gradients_are_those_of_the_nest(text: str, layout: str) -> None:
    problem = parse_problem(text, layout if "mm:" not in text else "nhwc")
    worst = gradcheck(problem)
    assert worst.keys() == {"x", "w"} and max(worst.values()) < 1e-6
    if "mb0" not in text:
        assert min(worst.values()) > 0  # something was compared


def test_a_wrong_gradient_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BackwardWeights.sums

    def wrong(self: BackwardWeights, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        sums = right(self, x, w)
        sums[..., 0] *= 1.01
        return sums

    monkeypatch.setattr(BackwardWeights, "sums", wrong)
    with pytest.raises(CheckError, match=r"gradient of w: .* from central differences"):
        gradcheck(parse_problem("mb2ic4ih7oc6kh3ph1"))


@pytest.mark.parametrize("text", ["bwd_w mb1ic4ih7oc6kh3", "mb1ic4ih7oc6kh3", "mm:4x4x4 act=relu"])
def test_what_has_no_gradients(text: str) -> None:
    dtype = "u8:s8:s32" if text.startswith("mb1") else "f32"
    with pytest.raises(
        UnsupportedError, match=r"expected a convolution|gradients are of real sums"
    ):
        gradcheck(parse_problem(text, dtype=dtype))
