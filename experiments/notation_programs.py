"""The programs of the Tensor Comprehensions paper, and einsums: what ``notation.py`` compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polysci import notation, to_bf16
from polysci.errors import SpecError


@dataclass(frozen=True, slots=True)
class Program:
    """A comprehension, or an ``equation`` of einsum for one, and the same in PyTorch.

    ``sizes`` say ``NAME=EXTENT``, in the order in which ``shapes`` need them. ``narrow`` is the
    text in bf16, where there is one.
    """

    text: str
    sizes: str
    theirs: Callable[..., Any] | None = None  # of torch and its tensors
    equation: str = ""
    moved: int = 0  # bytes that it reads and writes, where that decides about its time
    narrow: str = ""

    @property
    def extents(self) -> dict[str, int]:
        return {name: int(size) for name, size in (word.split("=") for word in self.sizes.split())}

    def arrays(self) -> list[np.ndarray]:
        """Inputs: real numbers, or indices into the first axis of the first input."""
        rng, extents = np.random.default_rng(0), self.extents
        if not self.text:
            words = self.equation.partition("->")[0].split(",")
            shapes = [tuple(extents[letter] for letter in word) for word in words]
            return [rng.standard_normal(shape, np.float32) for shape in shapes]
        arrays = list[np.ndarray]()
        for tensor in notation.parse(self.text)[-1].inputs:
            shape = tuple(extents.get(str(extent), extent) for extent in tensor.extents)
            if tensor.dtype == "bf16":
                arrays.append(to_bf16(rng.standard_normal(shape, np.float32)))
            elif tensor.dtype == "int32":
                arrays.append(rng.integers(0, len(arrays[-1]), shape).astype(np.int32))
            else:
                arrays.append(rng.standard_normal(shape, np.float32))
        return arrays


def tmm(m: int, k: int, n: int) -> Program:
    text = "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    return Program(
        text, f"M={m} K={k} N={n}", lambda torch, a, b: a @ b.T, "mk,nk->mn", narrow=in_bf16(text)
    )  # fmt: skip


def in_bf16(text: str) -> str:
    """The text with tensors of bf16."""
    return text.replace("float(", "bf16(")


def gconv(channels: int, size: int) -> Program:
    text = """def gconv(float(N,G,C,H,W) I, float(G,C,C,R,R) K) -> (O) {
        O(n,g,m,h,w) +=! I(n,g,c,h+r,w+s) * K(g,m,c,r,s)
    }"""
    return Program(
        text, f"N=32 G=32 C={channels} H={size + 2} W={size + 2} R=3",
        lambda torch, i, k: torch.conv2d(i.flatten(1, 2), k.flatten(0, 1), groups=32),
    )  # fmt: skip


def kronecker(n: int) -> Program:
    text = """def kronecker(float(D,N) U, float(D,N) V, float(D,N) W, float(M,N,N,N) X) -> (Y) {
        P(m,a,b,f) +=! X(m,a,b,c) * W(f,c)
        Q(m,a,e,f) +=! P(m,a,b,f) * V(e,b)
        Y(m,d,e,f) +=! Q(m,a,e,f) * U(d,a)
    }"""

    def theirs(torch: Any, u: Any, v: Any, w: Any, x: Any) -> Any:
        return torch.einsum("mabc,da,eb,fc->mdef", x, u, v, w)

    return Program(text, f"M=256 N=16 D={n}", theirs)


def group_norm(n: int, c: int, size: int) -> Program:
    text = """def group_norm(float(N,G,C,H,W) X, float(G,C) gamma, float(G,C) beta) -> (O) {
        mean(n,g) +=! X(n,g,c,h,w) / (C * H * W)
        var(n,g) +=! square(X(n,g,c,h,w) - mean(n,g)) / (C * H * W)
        O(n,g,c,h,w) = gamma(g,c) * (X(n,g,c,h,w) - mean(n,g)) * rsqrt(var(n,g) + 1e-5) + beta(g,c)
    }"""

    def theirs(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
        x, flat = x.flatten(1, 2), (gamma.flatten(), beta.flatten())
        return torch.nn.functional.group_norm(x, 32, *flat)

    return Program(text, f"N={n} G=32 C={c // 32} H={size} W={size}", theirs)


def moments(n: int, k: int) -> Program:
    text = """def moments(float(N,K) I) -> (mean, var) {
        mean(n) +=! I(n,k) / K
        var(n) +=! square(I(n,k)) / K
        var(n) = var(n) - square(mean(n)) where n in 0:N
    }"""
    return Program(
        text, f"N={n} K={k}",
        lambda torch, i: torch.var_mean(i, 1, correction=0)[::-1], moved=4 * n * (k + 2),
    )  # fmt: skip


def lookups(tables: int) -> Program:
    inputs = ", ".join(f"float(E,D) T{at}, int(B,L) I{at}" for at in range(tables))
    outputs = ", ".join(f"O{at}" for at in range(tables))
    body = " ".join(f"O{at}(b,d) +=! T{at}(I{at}(b,l), d)" for at in range(tables))

    def theirs(torch: Any, *arrays: Any) -> Any:
        bag = torch.nn.functional.embedding_bag
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        return [bag(places, table, mode="sum") for table, places in pairs]

    text = f"def lookups({inputs}) -> ({outputs}) {{ {body} }}"
    moved = tables * 128 * (50 * (64 + 1) + 64) * 4  # rows and their numbers, sums
    return Program(text, "E=100000 D=64 B=128 L=50", theirs, moved=moved)


def mlp(batch: int, *columns: int) -> Program:
    """Layers with a bias and a ReLU; between those of bf16 are tensors of bf16."""
    names = [f"K{at}" for at in range(len(columns))]
    inputs = ["float(B,K0) X0"]
    body = list[str]()
    for at in range(1, len(columns)):
        inputs.append(f"float(K{at},K{at - 1}) W{at}, float(K{at}) b{at}")
        body.append(f"Y{at}(b,n) +=! X{at - 1}(b,k) * W{at}(n,k)")
        body.append(f"X{at}(b,n) = max(Y{at}(b,n) + b{at}(n), 0)")
    text = f"def mlp({', '.join(inputs)}) -> (X{len(columns) - 1}) {{ {' '.join(body)} }}"

    def theirs(torch: Any, x: Any, *weights: Any) -> Any:
        for w, bias in zip(weights[::2], weights[1::2], strict=True):
            x = torch.relu(torch.nn.functional.linear(x, w, bias))
        return x

    sizes = [f"{name}={size}" for name, size in zip(names, columns, strict=True)]
    narrow = in_bf16(text).replace("= max(", "= bf16(max(").replace(", 0)", ", 0))")
    return Program(text, " ".join([f"B={batch}", *sizes]), theirs, narrow=narrow)


def wavenet(layers: int) -> Program:
    """A gated dilated convolution, its residual and skip products, one after the other."""
    inputs, body = ["float(B,C,T0) X0"], list[str]()
    for at in range(layers):
        span = 2**at
        inputs.append(f"float(C,C,2) F{at}, float(C,C,2) G{at}, float(C,C) R{at}, float(S,C) K{at}")
        body.append(f"""
            A{at}(b,m,t) +=! X{at}(b,c,t+{span}*k) * F{at}(m,c,k)
            D{at}(b,m,t) +=! X{at}(b,c,t+{span}*k) * G{at}(m,c,k)
            H{at}(b,m,t) = tanh(A{at}(b,m,t)) * sigmoid(D{at}(b,m,t))
            P{at}(b,m,t) +=! H{at}(b,c,t) * R{at}(m,c)
            X{at + 1}(b,m,t) = P{at}(b,m,t) + X{at}(b,m,t+{span})
            O{at}(b,s,t) +=! H{at}(b,c,t) * K{at}(s,c)""")
    outputs = ", ".join([f"X{layers}", *(f"O{at}" for at in range(layers))])
    text = f"def wavenet({', '.join(inputs)}) -> ({outputs}) {{ {' '.join(body)} }}"

    def theirs(torch: Any, x: Any, *weights: Any) -> Any:
        skips = []
        for at in range(layers):
            f, g, r, k = weights[4 * at : 4 * at + 4]
            span = 2**at
            a, d = (torch.conv1d(x, w, dilation=span) for w in (f, g))
            h = torch.tanh(a) * torch.sigmoid(d)
            x = torch.conv1d(h, r[..., None]) + x[..., span:]
            skips.append(torch.conv1d(h, k[..., None]))
        return [x, *skips]

    return Program(text, "B=1 C=32 T0=4000 S=256", theirs)


def equation(text: str, extents: str) -> Program:
    """An einsum; extents in the order in which its letters come first."""
    letters = dict.fromkeys(letter for letter in text.partition("->")[0] if letter != ",")
    sizes = " ".join(map("=".join, zip(letters, extents.split(), strict=True)))
    return Program("", sizes, lambda torch, *arrays: torch.einsum(text, *arrays), text)


_BATCHED = "def tbmm(float(B,M,K) X, float(B,K,N) Y) -> (Z) { Z(b,m,n) +=! X(b,m,k) * Y(b,k,n) }"
# Equation of einsum, of the kinds that users ask about -> extents of its letters.
EQUATIONS: Mapping[str, str] = {
    "bhmd,bhnd->bhmn": "8 12 128 64 128",
    "bhmn,bhnd->bhmd": "8 12 128 128 64",
    "bmhd,bnhd->bhmn": "8 128 12 64 128",
    "bhmn,bnhd->bmhd": "8 12 128 128 64",
    "bmd,hdk->bhmk": "8 128 512 8 64",
    "nct,ncp->ntp": "32 64 200 150",
    "abcd,dcef->abef": "16 16 24 24 16 16",
    "abcd,cdae->be": "24 16 24 24 32",
    "ijkl,jmln->imkn": "12 16 12 16 12 12",
    "abcde,ceb->da": "16 12 12 16 12",
    "abcde,efg->abcdfg": "6 6 6 8 32 8 8",
    "bij,bjk,bkl->bil": "64 32 32 32 32",
    "ij,jk,kl->il": "300 200 300 40",
    "ea,fb,abcd,gc,hd->efgh": "16 16 16 16 16 16 16 16",
    "bik,bjk,bk->bij": "16 64 128 64",
    "bn,anm,bm->ba": "64 128 32 128",
    "bilk,bijk->blj": "8 24 32 16 32",
    "nkctv,kvw->nctw": "16 3 32 50 25 25",
    "bij,bkj,bk->ik": "32 48 64 48",
    "tbh,hk,tbk->tb": "50 32 64 64",
}
PROGRAMS: Mapping[str, Program] = {
    **{f"tmm {m}x{k}x{n}": tmm(m, k, n)
       for m, k, n in ((128, 32, 256), (128, 1024, 1024), (128, 4096, 16384))},
    "tbmm": Program(
        _BATCHED, "B=500 M=26 K=72 N=26", lambda torch, x, y: x @ y, "bmk,bkn->bmn",
        narrow=in_bf16(_BATCHED),
    ),
    **{f"gconv {c} at {size}": gconv(c, size) for c, size in ((4, 56), (8, 28), (16, 14), (32, 7))},
    "Kronecker 32": kronecker(32),
    "Kronecker 64": kronecker(64),
    "group norm 4x512x12": group_norm(4, 512, 12),
    "group norm 32x512x48": group_norm(32, 512, 48),
    "moments 128x2304": moments(128, 2304),
    "moments 1024x36864": moments(1024, 36864),
    "1LUT": lookups(1),
    "2LUT": lookups(2),
    "C3": mlp(128, 1000, 1024),
    "MLP1": mlp(128, 2000, 128),
    "MLP3": mlp(128, 128, 64, 32, 2),
    "WaveNet 1": wavenet(1),
    "WaveNet 2": wavenet(2),
    **{text: equation(text, extents) for text, extents in EQUATIONS.items()},
}  # fmt: skip

NARROW = [name for name, program in PROGRAMS.items() if program.narrow]


def program_of(name: str, dtype: str) -> Program:
    """A program in a precision. Raises SpecError where it has none in bf16."""
    program = PROGRAMS[name]
    if dtype == "f32":
        return program
    if not program.narrow:
        raise SpecError(f"program {name!r}: not in {dtype}: expected one of {', '.join(NARROW)}")
    return replace(program, text=program.narrow, equation="")
