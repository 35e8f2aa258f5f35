"""Exported layers whose two factors change from call to call."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polysci.export import ExportedLayer, export_c, export_python
from polysci.ops import parse_problem
from polysci.space import schedule
from tests.support.exported import WARNINGS, run

PLANS = {
    'mm:2:7x5x11 n"product"': "t i:6 j:8 > brgemm_portable_f32_6x8",
    'bwd_w mb2ic3ih5oc10kh3ph1n"gradient"': "k:8 c r s > brgemm_portable_f32_4x8",
}
CALL = """
import numpy as np, net
rng = np.random.default_rng(0)
for layer in (net.product, net.gradient):
    x, w, w2 = (rng.integers(-3, 4, s).astype("f4") for s in (layer.x_shape, *[layer.w_shape] * 2))
    assert layer.activation
    y, y2 = layer(x, w), layer(x, w2)
    if layer is net.product:
        assert np.array_equal(y, x @ w) and np.array_equal(y2, x @ w2)
    else:
        assert y.shape == layer.y_shape and not np.array_equal(y, y2)
        center = np.einsum("nhwk,nhwc->kc", w, x)
        assert np.array_equal(y[:, :, 1, 1], center)
    for wrong, error in ((w[..., :-1].copy(), ValueError), (w.astype("f8"), TypeError)):
        try:
            layer(x, wrong)
            raise SystemExit("accepted")
        except error as said:
            assert str(said).startswith("w: "), said
    try:
        layer.pack_weights(w)
        raise SystemExit("packed")
    except TypeError as said:
        assert "w changes from call to call: pass w itself to the call" in str(said)
"""


def layers() -> list[ExportedLayer]:
    return [
        ExportedLayer(parse_problem(text), schedule.parse(plan)) for text, plan in PLANS.items()
    ]


@pytest.mark.exhaustive
def test_python_takes_plain_arrays(tmp_path: Path) -> None:
    export_python(layers(), tmp_path / "net")
    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=tmp_path / "net", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    said = (tmp_path / "net" / "net" / "__init__.py").read_text()
    assert "y = product(x, w, bias=bias" in said and "pack_weights" not in said
    assert "product(x, w, bias=None" in (tmp_path / "net" / "README.md").read_text()


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_c_header_says_what_packed_is_and_the_self_test_passes(tmp_path: Path) -> None:
    export_c(layers(), tmp_path, name="net")
    header = (tmp_path / "net.h").read_text()
    assert header.count(" * packed is w as it lies") == 2
    flags = ("-std=c11", "-O1", *WARNINGS)
    built = run("gcc", *flags, "net.c", "selftest.c", "-o", "selftest", "-lm", cwd=tmp_path)
    assert (built.returncode, built.stdout) == (0, "")
    assert run(tmp_path / "selftest", cwd=tmp_path).stdout == "4 passed, 0 failed\n"
