"""How fast are networks as WebAssembly beside onnxruntime-web and TensorFlow.js?

Each is made here with random weights, compiled to WebAssembly, and timed in Node in turns with the
peers on one thread, in one process: processor time. The ratio is the peer's time over ours: above
1, polysci is faster. TensorFlow.js takes part where the model is built in its own words:
mobilenet_v2.

  mkdir npm && cd npm && npm install onnxruntime-web @tensorflow/tfjs @tensorflow/tfjs-backend-wasm
  python experiments/web.py --npm npm

Needs clang and lld or ziglang, Node, and for bert_mini PyTorch, transformers and onnxscript.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import image_models
import onnx
import script
import small_models
import transformer_models

from polysci.cli import main as command
from polysci.errors import PolysciError, SpecError
from polysci.text.tables import bytes_text, fit

ROUNDS = 30
TIMES = Path(__file__).with_name("web_times.mjs")
RUNTIME = "node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm"
MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "mobilenet_v2": image_models.MODELS["mobilenet_v2"],
    "resnet50": image_models.MODELS["resnet50"],
    "yolo": image_models.MODELS["yolo"],
    "bert_mini": lambda: transformer_models.export(lambda: transformer_models.encoder(4, 256, 4)),
    "lstm128_100": small_models.SETS["recurrent"]["lstm128_100"],
}
QUICK = ("lstm128_100",)


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("networks", nargs="*", metavar="NAME", help=f"({', '.join(MODELS)})")
    words.add_argument("--npm", type=Path, required=True, metavar="DIR", help="has node_modules")
    words.add_argument("--isa", default="wasm128", metavar="NAME", help="(wasm128)")
    words.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    words.add_argument(
        "--save", type=Path, metavar="DIR", help="keep models and modules, and take those there"
    )
    return words


def chosen(arguments: Namespace) -> list[str]:
    """The names of models. Raises SpecError for one that is none, and where packages lack."""
    names = arguments.networks or [*(QUICK if arguments.quick else MODELS)]
    if unknown := [name for name in names if name not in MODELS]:
        raise SpecError(f"{unknown[0]}: no network of this script; known: {', '.join(MODELS)}")
    if not (arguments.npm / RUNTIME).exists():
        raise SpecError(f"--npm {arguments.npm}: has no {RUNTIME}; run npm install onnxruntime-web")
    return names


def job(name: str, folder: Path, isa: str) -> dict[str, str]:
    """Make a model and its module, where they are not there yet."""
    path, out = folder / f"{name}.onnx", folder / f"{name}_{isa}"
    if not path.exists():
        onnx.save(MODELS[name](), path)
    if not (out / f"{name}.wasm").exists():
        words = ["compile", path, "--isa", isa, "--level", "estimate", "--name", name, "-o", out]
        with redirect_stdout(sys.stderr):
            status = command([*map(str, words)])
        if status:
            raise PolysciError(f"{name}: it does not compile")
    absolute = {"script": out / f"{name}.js", "onnx": path}
    return {"name": name, **{key: str(value.absolute()) for key, value in absolute.items()}}


def node_flags() -> list[str]:
    """What makes versions of Node before 21 run relaxed SIMD."""
    words = ["node", "-p", "process.versions.node.split('.')[0]"]
    version = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return ["--experimental-wasm-relaxed-simd"] * (int(version) < 21)


def measure(jobs: list[dict[str, str]], npm: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield what Node measures of each model."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(jobs, file)
        file.flush()
        words = [
            "node",
            "--no-warnings",
            *node_flags(),
            TIMES,
            npm.absolute(),
            file.name,
            str(rounds),
        ]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout
            yield from map(json.loads, running.stdout)
        if running.returncode:
            raise PolysciError(f"Node ended with status {running.returncode}")


def row(measured: dict[str, Any], script_path: Path) -> dict[str, str]:
    """What the table says of a model: medians, the median of the ratios of rounds, sizes."""
    times, name = measured["times"], measured["name"]
    folder = script_path.parent
    cells = {
        "network": name,
        **{f"{key} ms": f"{median(values):.2f}" for key, values in times.items()},
        "module": bytes_text((folder / f"{name}.wasm").stat().st_size),
        "weights": bytes_text((folder / f"{name}.weights").stat().st_size),
        "apart": f"{measured['apart']:.1g}",
    }
    for key in times:
        if key != "polysci":
            pairs = zip(times[key], times["polysci"], strict=True)
            cells[f"{key}/ours"] = f"{median(other / own for other, own in pairs):.2f}"
    return cells


def work(arguments: Namespace) -> bool:
    """Compare, print; whether it came to its end."""
    names = chosen(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [job(name, folder, arguments.isa) for name in names]
        paths = {its["name"]: Path(its["script"]) for its in jobs}
        rows = [
            row(measured, paths[measured["name"]])
            for measured in measure(jobs, arguments.npm, arguments.rounds)
        ]
    columns = list(dict.fromkeys(key for its in rows for key in its))
    cells = [[its.get(key, "") for key in columns] for its in rows]
    print(fit([columns, *cells], None, left=("network",)))
    print(f"onnxruntime-web: {bytes_text((arguments.npm / RUNTIME).stat().st_size)} of WebAssembly")
    return True


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
