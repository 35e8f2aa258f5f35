"""Convolutions that statements write are layers of their own, with the interpreter's results."""

from __future__ import annotations

import re

import numpy as np
import pytest

from polysci import notation
from polysci.program.stages import LayerStage

RANDOM = np.random.default_rng(13)
SIZES = {"N": 2, "C": 5, "D": 4, "H": 9, "W": 10, "T": 40, "M": 16, "G": 3, "Q": 2, "R": 3, "S": 2}
# Statement -> the words of the layer that it is, or none where it is no convolution.
STATEMENTS = {
    "X(N,C,H,W) K(M,C,R,S) Z(n,m,h,w) +=! h+r >= 1 && h+r < 10 && w+s >= 1 && w+s <= 10 ? "
    "X(n,c,h+r-1,w+s-1) * K(m,c,r,s) : 0.0 where h in 0:9, w in 0:11, r in 0:3, s in 0:2":
        "ic5ih9iw10oc16oh9ow11kh3kw2ph1pw1",
    "X(N,C,H,W) K(M,C,R,S) Z(n,m,h,w) +=! X(n,c,h+r,w+s) * K(m,c,r,s)":
        "ic5ih9iw10oc16oh7ow9kh3kw2ph0pw0",
    "X(N,C,H,W) K(M,C,R,S) Z(n,m,h,w) +=! K(m,c,r,s) * X(n,c,2*h+r,w+3*s)":
        "ic5ih9iw10oc16oh4ow7kh3kw2sh2sw1ph0pw0dh0dw2",
    "X(N,C,H,W) K(M,C,R,S) Z(n,m,h,w) +=! h+r >= 2 && h+r < 10 ? X(n,c,h+r-1,w+s) * K(m,c,r,s)"
    " : 0.0 where h in 0:9, r in 0:3": "",  # which skips a row of x
    "X(N,G,C,H,W) K(G,M,C,R,S) Z(n,g,m,h,w) +=! X(n,g,c,h+r,w+s) * K(g,m,c,r,s)":
        "g3ic15ih9iw10oc48oh7ow9kh3kw2ph0pw0",
    "X(N,C,H,W) K(C,R,S) Z(n,c,h,w) +=! X(n,c,h+r,w+s) * K(c,r,s)":
        "g5ic5ih9iw10oc5oh7ow9kh3kw2ph0pw0",
    "X(N,T,C) K(S,C,M) Z(n,t,m) +=! X(n,t+3*s,c) * K(s,c,m)":
        "ic5ih1iw40oc16oh1ow37kh1kw2ph0pw0dh0dw2",
    "X(C,T) K(M,C,S) Z(m,t) +=! X(c,t+s) * K(m,c,s)": "mb1ic5ih1iw40oc16oh1ow39kh1kw2ph0pw0",
    "X(N,H,W,C) K(R,S,C,M) Z(n,h,w,m) +=! X(n,h+r,w+s,c) * K(r,s,c,m)":
        "ic5ih9iw10oc16oh7ow9kh3kw2ph0pw0",
    "X(N,C,D,H,W) K(M,C,Q,R,S) Z(n,m,d,h,w) +=! X(n,c,d+q,h+r,w+s) * K(m,c,q,r,s)":
        "conv3d ic5id4ih9iw10oc16od3oh7ow9kd2kh3kw2pd0ph0pw0",
    "X(N,C,H,W) K(M,C,R) Z(n,m,h,w) +=! X(n,c,h+r,w) * K(m,c,r)":
        "ic5ih9iw10oc16oh7ow10kh3kw1ph0pw0",
    "X(N,C,T) K(M,C,S) Z(n,m,t) = 2.0 where n in 0:N, m in 0:M, t in 0:39 "
    "Z(n,m,t) += X(n,c,t+s) * K(m,c,s)": "ic5ih1iw40oc16oh1ow39kh1kw2ph0pw0",
    "X(N,C,T) K(M,C,S) Z(n,m,t) +=! X(n,c,t+s+1) * K(m,c,s)"
    " where t in 0:38, s in 0:2": "",
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("statement", STATEMENTS)
def test_convolutions_are_layers(statement: str) -> None:
    x, k, body = re.fullmatch(r"X(\(.*?\)) K(\(.*?\)) (.*)", statement).groups()  # type: ignore[union-attr]
    text = f"def f(float{x} X, float{k} K) -> (Z) {{ {body} }}"
    shapes = [[SIZES[name] for name in names[1:-1].split(",")] for names in (x, k)]
    arrays = [RANDOM.integers(-3, 4, shape).astype("f4") for shape in shapes]
    used = {name: size for name, size in SIZES.items() if re.search(rf"\b{name}\b", x + k)}
    function = notation.compile(text, used, level="estimate")
    expected = notation.interpret(text, dict(zip("XK", arrays, strict=True)))["Z"]
    np.testing.assert_array_equal(function(*arrays), expected)
    layers = [
        str(stage.problem) for stage in function.network.prepared.program.stages
        if isinstance(stage, LayerStage) and not str(stage.problem).startswith("nest")
    ]  # fmt: skip
    assert layers == [STATEMENTS[statement]] * bool(STATEMENTS[statement])
