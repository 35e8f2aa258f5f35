"""The C interface of a primitive: what its functions take, by precision."""

from __future__ import annotations

from polysci.numerics.dtypes import Precision

STRUCT = """\
typedef struct {
    const float *scale; /* one a channel */
    float residual_scale;
    int32_t residual_zero, y_zero;
} polysci_scales;
"""
SCALES = f"#ifndef PS_SCALES\n#define PS_SCALES\n{STRUCT}#endif\n"


def declarations(symbol: str, precision: Precision, *, by_rows: bool = False) -> str:
    """Prototypes of the four functions of the primitive ``symbol``."""
    return (
        f"int64_t {symbol}_workspace_size(void);\n"
        f"int64_t {symbol}_packed_size(void);\n"
        f"{pack_head(symbol, precision)};\n"
        f"{run_head(symbol, precision, by_rows=by_rows)};\n"
    )


def pack_head(symbol: str, precision: Precision) -> str:
    """Of the function that packs weights; whole inputs say what x holds for zero."""
    zero = ", int32_t x_zero" if precision.integer else ""
    packed = _packed(precision)
    return f"void {symbol}_pack_weights(const {precision.w.c_type} *w, {packed} *packed{zero})"


def run_head(symbol: str, precision: Precision, *, by_rows: bool = False) -> str:
    """Of the function that computes; ``by_rows``: some iterations of its outermost loop."""
    x, y, sums = (one.c_type for one in (precision.x, precision.y, precision.sum))
    first = f"int {symbol}("
    scales = ", const polysci_scales *to" if precision.scaled else ""
    band = ", int64_t first, int64_t last" if by_rows else ""
    return (
        f"{first}const {x} *x, const {_packed(precision)} *packed, {y} *y, const {sums} *bias,\n"
        f"        const {y} *residual, const float *clamp{scales}, void *workspace{band})"
    )


def arguments(precision: Precision) -> str:
    """The arguments that a caller hands on, by the names of ``run_head``."""
    scales = "to, " if precision.scaled else ""
    return f"x, packed, y, bias, residual, clamp, {scales}workspace"


def _packed(precision: Precision) -> str:
    """The type in whose units packed weights are; narrow ones are opaque."""
    return "float" if str(precision) == "f32" else "void"


def team(threads: int, *, joined: bool, last: bool) -> str:
    """The pragma of a loop over thread numbers: a region of its own, or a share of the caller's.

    In the caller's region nobody waits after the ``last`` one.
    """
    if not joined:
        return f"#pragma omp parallel for num_threads({threads}) schedule(static)"
    return "#pragma omp for schedule(static)" + " nowait" * last
