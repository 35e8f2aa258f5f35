"""How fast are the programs of the Tensor Comprehensions paper, and einsums, beside peers?

Peers: PyTorch eager and ``torch.compile(mode="max-autotune")`` on the function of ``torch`` that
computes the same, and for a single sum of products ``numpy.einsum(optimize=True)`` and opt_einsum
on NumPy. Each runs in a process of its own, in turns, with as many threads. Ratios are of the
fastest of them: above 1, polysci is faster. ``--model`` times what the model alone chooses as well:
``model`` is the time at ``--level`` over that. Programs that only move data have a copy of as many
bytes beside them: ``of copy`` is its time over ours. ``--dtype bf16`` compares the programs whose
products make sense in bf16; PyTorch's results are bf16 then, ours where the text says so.

  python experiments/notation.py "group norm" 1LUT --level estimate --threads 1

Needs PyTorch.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import opt_einsum
import script
from notation_programs import NARROW, PROGRAMS, Program, program_of

import polysci
from polysci import from_bf16, notation
from polysci.errors import CheckError, SpecError
from polysci.text.tables import fit
from polysci.tune import LEVELS

PEERS = ("numpy", "opt_einsum", "eager", "compiled")
MODEL, COPY = "estimate", "copy"
OF_EQUATIONS = ("numpy", "opt_einsum")
ROUNDS = 5
# Of the sum of all results' magnitudes.
TOLERANCES: Mapping[str, float] = {"f32": 1e-3, "bf16": 1e-2}


def make(arguments: Namespace, name: str, way: str) -> tuple[Callable[[], object], float]:
    """What runs a program in a way, and the sum of the magnitudes of its results."""
    program = program_of(name, arguments.dtype)
    run = {"polysci": ours, MODEL: ours, COPY: copy}.get(way, theirs)
    call = run(arguments, program, [] if way == COPY else program.arrays(), way)
    results = call()
    several = results if isinstance(results, list | tuple) else [results]
    if isinstance(results, dict):
        several = [*results.values()]
    return call, sum(map(magnitude, several))


def magnitude(result: Any) -> float:
    """The sum of the magnitudes of an array or tensor."""
    if str(result.dtype) == "torch.bfloat16":
        result = result.float()
    values = np.asarray(result)
    return float(
        np.abs(from_bf16(values) if values.dtype == np.uint16 else values).sum(dtype=float)
    )


def copy(
    arguments: Namespace, program: Program, _arrays: list[np.ndarray], _way: str
) -> Callable[[], Any]:
    """Reads half of the bytes and writes the other half."""
    import torch

    torch.set_num_threads(arguments.threads)
    source, target = (torch.zeros(program.moved // 8) for _ in range(2))
    return lambda: target.copy_(source)


def ours(
    arguments: Namespace, program: Program, arrays: list[np.ndarray], way: str
) -> Callable[[], Any]:
    level = MODEL if way == MODEL else arguments.level
    words = {"level": level, "threads": arguments.threads}
    if not program.text:
        return lambda: polysci.einsum(program.equation, *arrays, **words)
    function = notation.compile(program.text, program.extents, **words)
    return lambda: function(*arrays)


def theirs(
    arguments: Namespace, program: Program, arrays: list[np.ndarray], way: str
) -> Callable[[], Any]:
    """NumPy's einsum, that of opt_einsum, or PyTorch eager or compiled."""
    if way == "numpy":
        return lambda: np.einsum(program.equation, *arrays, optimize=True)
    if way == "opt_einsum":
        return lambda: opt_einsum.contract(program.equation, *arrays)
    import torch

    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    tensors, function = [torch.from_numpy(array) for array in arrays], program.theirs
    if arguments.dtype == "bf16":
        tensors = [x.view(torch.bfloat16) for x in tensors]
    assert function is not None

    def run(*inputs: Any) -> Any:
        return function(torch, *inputs)

    compiled: Any = torch.compile(run, mode="max-autotune") if way == "compiled" else run
    return lambda: compiled(*tensors)


def compare(arguments: Namespace, name: str) -> script.Row:
    """A row of the table."""
    program = program_of(name, arguments.dtype)
    peers = [way for way in PEERS if way not in OF_EQUATIONS or program.equation]
    others = [*[MODEL] * arguments.model, *[COPY] * bool(program.moved)]
    known = ["polysci", *(way for way in peers if way not in arguments.without), *others]
    ways = {way: (arguments, name, way) for way in known}
    sums, seconds = script.in_turns(ways, make, arguments.rounds)
    for way, total in sums.items():
        if isinstance(total, Exception):
            raise CheckError(f"{name}: {way}: {total}")
        most = TOLERANCES[arguments.dtype] * abs(sums["polysci"])
        if way != COPY and abs(total - sums["polysci"]) > most:
            raise CheckError(f"{name}: {way}: the results differ: {sums}")
    mine = seconds["polysci"]
    ratios = {peer: seconds[peer] / mine for peer in PEERS if peer in seconds}
    cells = {f"{way} us": f"{seconds[way] * 1e6:.1f}" if way in seconds else ""
             for way in ("polysci", *PEERS)}  # fmt: skip
    cells["model"] = f"{mine / seconds[MODEL]:.2f}" if MODEL in seconds else ""
    cells["of copy"] = f"{seconds[COPY] / mine:.2f}" if COPY in seconds else ""
    return {
        "program": name,
        "dtype": arguments.dtype,
        **cells,
        "ratio": f"{min(ratios.values()):.2f}",
    }


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("programs", nargs="*", metavar="PROGRAM", help="(all)")
    words.add_argument("--threads", type=int, default=1, metavar="N", help="(1)")
    words.add_argument("--dtype", choices=[*TOLERANCES], default="f32", help="(f32)")
    words.add_argument("--level", choices=[*LEVELS], default="measure", help="(measure)")
    words.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    words.add_argument(
        "--without", choices=PEERS, action="append", default=[], help="leave a peer out"
    )
    words.add_argument("--model", action="store_true", help="time what the model alone chooses too")
    return words


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(arguments.threads)  # of the processes that are to come
    every = [*PROGRAMS] if arguments.dtype == "f32" else NARROW
    names = arguments.programs or every[: 1 if arguments.quick else None]
    if other := [name for name in names if name not in PROGRAMS]:
        raise SpecError(f"program {other[0]!r}: expected one of {', '.join(PROGRAMS)}")
    rows, complete = script.kept((compare(arguments, name) for name in names), "rows", len(names))
    if rows:
        cells = [[str(value) for value in row.values()] for row in rows]
        print(fit([[*rows[0]], *cells], None, left=("program",)))
        ratios = [float(str(row["ratio"])) for row in rows]
        print(f"geometric mean {script.geomean(ratios):.2f}, least {min(ratios):.2f}")
        path = script.stem(arguments, f"notation-{arguments.dtype}-{arguments.threads}")
        script.write_csv(path.with_suffix(".csv"), rows)
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
