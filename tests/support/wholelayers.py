"""Programs without Python that run whole layers of any precision and compare every byte."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from polysci.export import ExportedLayer
from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import precision_named
from polysci.printers import interface
from polysci.printers.c_values import c_type
from polysci.tune import EmitOptions, emit
from tests.support.kernelunit import ROOT

MAIN = ROOT / "tests/data/layers_main.c"


def program(
    layers: Sequence[ExportedLayer], folder: Path, build: Callable[[Path, Sequence[Path]], Path]
) -> tuple[Path, Path]:
    """A program for layers of one precision, and the file of inputs and results to give to it.

    ``build(out, sources)`` compiles and links.
    """
    sources, rows, texts = [], [], []
    with (folder / "data").open("wb") as data:
        for number, layer in enumerate(layers):
            options = EmitOptions(f"layer{number}")
            source = emit(layer.problem, layer.schedule, layer.threads, options)
            sources.append(folder / f"layer{number}.c")
            sources[-1].write_text(source.file)
            texts.append(source.declarations)
            arrays = Arrays.of(layer.problem, number)
            rows.append(_row(f"layer{number}", f"{layer.problem} {layer.schedule}", arrays))
            for array in _arrays(arrays):
                data.write(np.ascontiguousarray(array).tobytes())
    dtype = layers[0].problem.dtype
    main = [interface.SCALES, *texts, *_types(dtype), f"#define LAYERS {', '.join(rows)}"]
    sources.append(folder / "main.c")
    sources[-1].write_text("\n".join(["#include <stdint.h>", *main, MAIN.read_text()]))
    return build(folder / "layers", sources), folder / "data"


def _arrays(of: Arrays) -> list[np.ndarray]:
    scale = of.scales.scale if of.scales else np.zeros(0)
    inputs = [of.inputs[name] for name in ("x", "w", "bias", "residual", "clamp")]
    return [*inputs, np.asarray(scale, np.float32), of.plain, of.fused]


def _row(symbol: str, name: str, of: Arrays) -> str:
    """A line of the table."""
    zeros = (of.scales.y_zero, of.scales.residual_zero) if of.scales else (0, 0)
    share = of.scales.residual_scale if of.scales else 0.0
    x, w, bias, residual, _, scale, *_ = (array.nbytes for array in _arrays(of))
    numbers = [of.x_zero or 0, *zeros, f"(float){float(share)}", x, w, bias, residual, scale]
    ends = ("_workspace_size", "_packed_size", "_pack_weights", "")
    parts = [f'"{name}"', *map(str, numbers), *(f"{symbol}{end}" for end in ends)]
    return f"{{{', '.join(parts)}}}"


def _types(dtype: str) -> list[str]:
    """What a precision makes of the signature of a layer."""
    it = precision_named(dtype)
    packed = "float" if str(it) == "f32" else "void"
    types = {"X": it.x, "W": it.w, "Y": it.y, "SUM": it.sum}
    names = {name: c_type(dtype.stored) for name, dtype in types.items()}
    names |= {"PACKED": packed, "PACK_TYPES": "", "PACK_MORE": "", "RUN_TYPES": "", "RUN_MORE": ""}
    if it.integer:
        names |= {"PACK_TYPES": ", int32_t", "PACK_MORE": ", l->x_zero"}
    if it.scaled:
        names |= {"RUN_TYPES": ", const polysci_scales *", "RUN_MORE": ", &to"}
    return [f"#define {name} {text}" for name, text in names.items()]
