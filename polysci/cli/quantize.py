"""polysci quantize: a model with layers of 8 bits, and what that loses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.cli import bindings
from polysci.cli import layers as shared
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.quantize import QuantizedModel

HELP = "write an ONNX model with layers of 8 bits, calibrated on data, and what each layer loses"
MORE = (
    "Conv, MatMul and Gemm with constant weights are put between QuantizeLinear and "
    "DequantizeLinear, which ONNX Runtime runs as well. Inputs of layers become unsigned numbers "
    "of 8 bits, weights signed ones with a scale a channel. Losses are relative to f32, on the data"
)


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("model", metavar="MODEL", help="an ONNX file")
    command.add_argument(
        "--data", metavar="FILE.npz", required=True,
        help="arrays by the names of the inputs: of the shape of an input, that behind an axis of "
        "samples, or several times its first axis",
    )  # fmt: skip
    command.add_argument(
        "-o", dest="output", metavar="FILE", required=True, help="the ONNX file to write"
    )
    command.add_argument(
        "--method", choices=("minmax", "percentile", "entropy"), default="minmax",
        help="range of 8-bit numbers: all that the data has, all but a share, or the one that "
        "loses least information (minmax)",
    )  # fmt: skip
    command.add_argument(
        "--percentile", type=float, metavar="P", help="share of --method percentile (99.99)"
    )
    command.add_argument(
        "--dtype", choices=("int8", "auto"), default="int8",
        help="auto: as many layers in int8 as --max-loss permits, others with weights of bf16 as "
        "far as it permits, the rest in f32 (int8)",
    )  # fmt: skip
    command.add_argument(
        "--max-loss", type=float, metavar="X",
        help="with --dtype auto: the most that an output may lose, as in 0.01",
    )  # fmt: skip
    command.add_argument(
        "--dim", type=bindings.dim, action="append", default=[], metavar="NAME=N",
        help="bind a free dimension, by its name or as INPUT.AXIS, for the runs on the data; may "
        "be repeated",
    )  # fmt: skip
    command.add_argument(
        "--external-data", action="store_true",
        help="read weights from files beside the model, where the model refers to them",
    )  # fmt: skip
    command.add_argument(
        "--threads",
        type=shared.threads,
        metavar="N",
        help="threads of the runs (POLYSCI_NUM_THREADS, else 1)",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print one JSON object")
    shared.wide_option(command)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, write the model, print the loss of each layer and of the network."""
    from polysci.quantize import quantize_model

    if arguments.percentile is not None and arguments.method != "percentile":
        raise SpecError(f"--percentile {arguments.percentile:g}: of --method percentile")
    if (arguments.dtype == "auto") != (arguments.max_loss is not None):
        raise SpecError("--max-loss: the budget of --dtype auto, which needs one, as in 0.01")
    result = quantize_model(
        arguments.model, arguments.data, method=arguments.method,
        percentile=99.99 if arguments.percentile is None else arguments.percentile,
        dtype=arguments.dtype, max_loss=arguments.max_loss, dims=bindings.dims_of(arguments),
        external=arguments.external_data, threads=arguments.threads or shared.default_threads(),
        say=shared.say,
    )  # fmt: skip
    try:
        Path(arguments.output).write_bytes(result.model.SerializeToString())
    except OSError as error:
        raise SpecError(f"-o {arguments.output}: cannot be written: {error.strerror}") from None
    if arguments.json:
        layers = [
            {"layer": row.name, "op": row.op, "dtype": row.dtype, "losses": dict(row.losses)}
            for row in result.layers
        ]
        print(json.dumps({"loss": result.loss, "samples": result.samples, "layers": layers}))
    else:
        print(_table(result, shared.table_width(arguments)))
        print(f"loss of the network: {result.loss:.3g}, on {result.samples} samples")
        print(f"written: {arguments.output}")
    return 0


def _table(result: QuantizedModel, width: int | None) -> str:
    """One line a layer: its type, and what it loses by itself in each."""
    from polysci.text.tables import fit

    types = list(result.layers[0].losses)
    head = ["layer", "operator", "type", *(f"loss in {dtype}" for dtype in types)]
    rows = [
        [row.name, row.op, row.dtype, *(f"{row.losses[dtype]:.2e}" for dtype in types)]
        for row in result.layers
    ]
    return fit([head, *rows], width, drop=("operator",), clip=head[:1], left=head[:3])
