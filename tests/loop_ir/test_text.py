"""The text of loop IR, which ``--show ir`` prints."""

from polysci.loop_ir.index import Variable, as_index, compare
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    Compute,
    Declare,
    Element,
    For,
    If,
    Invoke,
    LoopFunction,
    LoopKind,
    LoopModule,
    Named,
    Once,
    ScalarParameter,
    Scope,
    Store,
    Table,
    block,
    loop,
)

ROW, J, N = Variable("i"), Variable("j"), Variable("n")
EXPECTED = """\
table factors: float32[2 x 5] = {0, 1, 2, 3, 4, 5, 6, 7, ...}

# Adds rows.
function add_rows(x: const ps_a[], y: ps_a[64], n: int64):
    declare sums: float32[8] @ stack
    once:
        pass
    barrier
    parallel for i from 0 to 8 by 2:
        simd for j from 0 to n step 4:
            y[8 * i + j] = (x[j] + x[8 * i])
    barrier
    if i < n:
        add_rows(x=&x[8], y=y, n=n)
    else:
        ps_fence(y)
"""


def module() -> LoopModule:
    """Return functions with a loop of each kind, a branch and calls."""
    first = Element("x", J)
    total = Compute("add", "float32", (first, Element("x", 8 * ROW)), ("float32", "float32"))
    inner = For("j", as_index(0), N, block(Store("y", 8 * ROW + J, total)), step=4, simd=True)
    eight = as_index(8)
    body = block(
        Declare(Buffer("sums", "float32", eight, Scope.STACK)),
        Once(block(), wait=True),
        For("i", as_index(0), eight, block(inner), kind=LoopKind.PARALLEL, wait=True, chunk=2),
        If(
            compare(ROW, "<", N),
            block(Invoke("add_rows", (Address(Named("x"), eight), Named("y"), N))),
            block(Invoke("ps_fence", (Named("y"),))),
        ),
    )
    parameters = (
        Buffer("x", "ps_a", const=True), Buffer("y", "ps_a", as_index(64)), ScalarParameter("n"),
    )  # fmt: skip
    function = LoopFunction("add_rows", parameters, body, comment="Adds rows.")
    table = Table("factors", "float32", (2, 5), tuple(range(10)))
    return LoopModule((table, function))


def test_the_text_of_a_module() -> None:
    assert f"{module()}\n" == EXPECTED


def test_long_calls_and_heads_take_lines_of_their_own() -> None:
    names = [f"argument_{number}" for number in range(12)]
    call = Invoke("consume", tuple(map(Named, names)))
    first, *lines, last = str(loop("i", 4, call)).splitlines()[1:]
    assert (first, last) == ("    consume(", "    )") and len(lines) == 2
    assert " ".join(line.strip() for line in lines) == ", ".join(names) + ","
    head = str(LoopFunction("consume", tuple(map(ScalarParameter, names)), block()))
    assert head.splitlines()[1] == "    argument_0: int64," and len(head.splitlines()) == 15
