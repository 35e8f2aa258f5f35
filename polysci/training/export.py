"""A trained model's step as a C project: the library, its state, and a function around both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

from polysci.export import folder
from polysci.export.file_flags import file_flags
from polysci.export.folder import Content
from polysci.export.names import remark
from polysci.network.codegen.signature import ports_of
from polysci.network.compile.compiled import Network
from polysci.network.ir.graph import Array
from polysci.network.tools.c_project import network_sources
from polysci.numerics.arrays import round_up
from polysci.text import templates

TEMPLATES = Path(__file__).with_name("templates")
LOSS = "loss"


def write_step(
    network: Network, held: Mapping[str, Array], rate: str, out: Path, *, force: bool = False
) -> list[Path]:
    """Write the C of a step with the values of ``held`` into a directory; the paths written.

    Raises SpecError for a directory that holds other files (unless ``force``).
    """
    name, sources = network.name, network_sources(network)
    stems = [path.removesuffix(".c") for path in sources.files if path.endswith(".c")]
    values = {
        "OBJECTS": " ".join(f"{stem}.o" for stem in stems),
        "OPENMP": "-fopenmp" if network.threads > 1 else "-fopenmp-simd",
        **_values(network, held, rate),
        **file_flags(sources.files),
    }
    made = {
        f"{name}_step.h": templates.fill(TEMPLATES / "step.h", values),
        "Makefile": templates.fill(TEMPLATES / "makefile.mk", values),
    }
    files: dict[str, Content] = {**sources.files, f"{name}.weights": sources.weights, **made,
             f"{name}.state": lambda: _bytes(held)}  # fmt: skip
    return folder.write(out, files, leftovers=(f"lib{name}.a", "*.o"), force=force)


def _values(network: Network, held: Mapping[str, Array], rate: str) -> dict[str, str]:
    """What the templates are filled with; tensors of ``held`` lie one behind the other."""
    sizes = [round_up(array.nbytes) for array in held.values()]
    first = dict(zip(held, [0, *accumulate(sizes)], strict=False))
    program, parameters, words, call = network.prepared.program, [], [], []
    replaced = dict(zip(program.titles, map(program.in_place.get, program.outputs), strict=True))
    for port in ports_of(program):
        state = port.title if port.title in held else replaced.get(port.title)
        if state is not None:
            call.append(f"({port.kind} *)(at + {first[state]})")
        elif port.title in replaced:
            call.append(f"&{LOSS}")
        else:
            word = rate if port.title == rate else port.word
            star = "" if port.title == rate else "*"
            parameters.append(f"{'const ' * bool(star)}{port.kind} {star}{word}")
            words.append(word)
            call.append(word if star else f"&{word}")
    rows = [
        f" *   byte {first[key]:>10}  {array.dtype} {list(array.shape)} ({remark(key)})"
        for key, array in held.items()
    ]
    return {
        "NAME": network.name, "UPPER": network.name.upper(), "SIZE": str(sum(sizes)),
        "ROWS": "\n".join(rows), "PARAMETERS": ", ".join(parameters),
        "ARGUMENTS": ", ".join(words), "CALL": ", ".join(call),
    }  # fmt: skip


def _bytes(held: Mapping[str, Array]) -> Iterable[bytes]:
    """All tensors, each up to a whole line."""
    for array in held.values():
        yield array.tobytes() + bytes(round_up(array.nbytes) - array.nbytes)
