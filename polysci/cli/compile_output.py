"""The output of ``compile -o``: its options, which exclude each other, and the writing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.cli import layers as shared
from polysci.cli.bindings import dims_of, several_sizes
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.network.compiled import Network


def output_options(command: argparse.ArgumentParser) -> None:
    """Options that say what to write."""
    command.add_argument(
        "--python", action="store_true", help="with -o: write a Python package instead of C"
    )
    command.add_argument(
        "--embed", action="store_true", help="with -o: put the weights into the C library"
    )
    command.add_argument(
        "--isas", type=name_list, metavar="NAME,NAME",
        help="with -o: write code for each of these instruction sets, of which the library uses "
        "the best that the CPU has",
    )  # fmt: skip
    command.add_argument(
        "--freestanding", action="store_true",
        help="with -o: write C without heap, files or an operating system, weights as constants",
    )  # fmt: skip
    command.add_argument(
        "--packed-weights", action="store_true",
        help="with -o: write weights as runs read them, so that processes can map and share the "
        "file; done anyway where it is hardly larger for that",
    )  # fmt: skip


def name_list(text: str) -> list[str]:
    """Return names separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def check_output(arguments: argparse.Namespace) -> None:
    """Raise SpecError for options that exclude each other."""
    for option in ("python", "embed", "packed_weights", "freestanding", "force", "isas", "machine"):
        if getattr(arguments, option) and not arguments.out:
            raise SpecError(f"--{option.replace('_', '-')}: says what to write; it needs -o DIR")
    if arguments.python and (arguments.isas or arguments.machine):
        raise SpecError("--python: a package holds code that runs here, of one instruction set")
    beside = ("python", "embed", "packed_weights", "isas", "machine")
    if arguments.freestanding and (other := [name for name in beside if getattr(arguments, name)]):
        raise SpecError(f"--freestanding: leave out --{other[0].replace('_', '-')}")
    if arguments.pool != "openmp" and not arguments.out:
        raise SpecError(f"--threads {arguments.pool}: says what to write; it needs -o DIR")
    if arguments.python and arguments.pool != "openmp":
        raise SpecError(f"--threads {arguments.pool}: a Python package has threads of OpenMP's")
    if arguments.python and arguments.embed:
        raise SpecError("--embed: a Python package has its weights in a file; leave out --python")
    if arguments.python and arguments.packed_weights:
        raise SpecError("--packed-weights: a Python package packs its own; leave out --python")
    if arguments.packed_weights and arguments.isas:
        raise SpecError("--packed-weights: each instruction set has its own way; leave out --isas")


def check_folder(arguments: argparse.Namespace, name: str) -> None:
    """Raise what is wrong with the folder of -o."""
    from polysci.export.network_project import check_freestanding, check_package, check_project

    out = Path(arguments.out)
    if arguments.freestanding:
        threads, pool = shared.threads_of(arguments), arguments.pool
        check_freestanding(out, name, threads, pool, force=arguments.force)
        return
    check = check_package if arguments.python else check_project
    check(out, name, force=arguments.force)


def write_sizes(
    arguments: argparse.Namespace, compile_for: Callable[[Mapping[str, int]], Network]
) -> int:
    """Write one C library that has an entry for each choice of the sizes of ``--dim``."""
    from polysci.export.network_project import join_sizes, write_project

    if not arguments.out:
        dims_of(arguments)
    alone = ("python", "freestanding", "isas", "machine", "compare", "json")
    if wrong := [option for option in (*alone, "scheduler") if getattr(arguments, option)]:
        raise SpecError(f"--{wrong[0].replace('_', '-')}: of one size; --dim has several")
    if shared.machine_of(arguments):
        raise SpecError(f"--isa {arguments.isa}: nothing of it runs here; --dim has several sizes")
    fixed = {name: sizes[0] for name, sizes in arguments.dim}
    networks = [(sizes, compile_for(fixed | sizes)) for sizes in several_sizes(arguments)]
    whole = join_sizes(networks, networks[0][1].name, arguments.pool)
    for path in write_project(
        whole, Path(arguments.out), embed=arguments.embed, packed=arguments.packed_weights,
        force=arguments.force,
    ):  # fmt: skip
        print(path)
    return 0


def write_output(arguments: argparse.Namespace, network: Network) -> None:
    from polysci.export.network_project import write_freestanding, write_package, write_project
    from polysci.network.compiled import use_pool

    out, network = Path(arguments.out), use_pool(network, arguments.pool)
    if arguments.freestanding:
        paths = write_freestanding(network, out, force=arguments.force)
    elif arguments.python:
        paths = write_package(network, out, force=arguments.force)
    else:
        paths = write_project(
            network, out, embed=arguments.embed, packed=arguments.packed_weights,
            force=arguments.force,
        )  # fmt: skip
    for path in paths:
        (shared.say if arguments.json else print)(str(path))
