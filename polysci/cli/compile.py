"""polysci compile: a whole model as C, and how fast it is."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from polysci.cli import bindings, weights
from polysci.cli import compile_output as output
from polysci.cli import compile_targets as targets
from polysci.cli import layers as shared
from polysci.cli.schedulers import describe_result, scheduler_option
from polysci.cli.tuners import tuner_of, tuner_options
from polysci.errors import SpecError, UnsupportedError

if TYPE_CHECKING:
    from polysci.graph.graph import Graph
    from polysci.network.compiled import Network, PlannedNetwork
    from polysci.network.options import CompileOptions
    from polysci.network.prepare import Model, RunSizes
    from polysci.ops.problem import Problem
    from polysci.peers import Peer
    from polysci.tune import Progress, Result


T = TypeVar("T")
KINDS = ("openmp", "pthread", "callback")
NONE = "none"


class ThreadsAction(argparse.Action):
    """Sets ``threads`` and ``pool`` from N, KIND, KIND:N or none."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        try:
            namespace.threads, namespace.pool = parse(str(values))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def parse(text: str) -> tuple[int, str]:
    """Return the number of threads, and the kind that starts them.

    Where only the kind is said the number is POLYSCI_NUM_THREADS, else that of the CPUs that this
    process may use, and at least 2.
    """
    kind, _, number = text.partition(":")
    if text == NONE:
        return 1, KINDS[0]
    if kind not in KINDS:
        if text.isdigit():
            return shared.threads(text), KINDS[0]
        raise argparse.ArgumentTypeError(
            f"expected a number, {', '.join(KINDS)} or {NONE}, or both, as in pthread:2; "
            f"got {text!r}"
        )
    if number or text != kind:
        count = shared.threads(number)
    elif "POLYSCI_NUM_THREADS" in os.environ:
        count = shared.default_threads()
    else:
        from polysci.target.host import available_cores

        count = max(2, available_cores())
    if count == 1 and kind != KINDS[0]:
        raise argparse.ArgumentTypeError(f"{text}: needs 2 threads at least; one is {NONE!r}")
    return count, kind


HELP = "compile a whole ONNX model: time it, compare it, or write it as C or as a Python package"
MORE = "Without -o, print the time of each stage."
_PEERS = {"onnxruntime", "openvino", "torch.nn"}


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument(
        "model", metavar="MODEL",
        help="an ONNX file, a program that torch.export.save wrote (MODEL.pt2), a decoder of "
        "llama.cpp (MODEL.gguf), a text of tensor notation (PROGRAM.tc), or the words of linear "
        "layers: 'mlp:16x1024x4096x1024 act=relu'",
    )  # fmt: skip
    _model_options(command)
    _output_options(command)
    command.add_argument(
        "--compare", type=output.name_list, metavar="NAME,NAME",
        help="time the model in turns with onnxruntime, openvino or both, or words of layers with "
        "torch.nn; each in its own process",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=shared.positive, metavar="N", help="timed turns of --compare (15)"
    )
    bindings.input_options(command)
    shared.table_options(command)
    command.add_argument("--output", metavar="FILE", help="write the table or JSON to FILE")


def print_explanation(arguments: argparse.Namespace, model: str) -> int:
    """``explain MODEL.onnx``: the groups of a model, with the estimates of the cost model."""
    arguments.model = model
    bindings.check_bindings(arguments)
    network = _compile(
        arguments, model, level="estimate", dims=bindings.dims_of(arguments),
        most=dict(arguments.most),
    )  # fmt: skip
    _write_explanation(arguments, network)
    return 0


def _write_explanation(arguments: argparse.Namespace, network: Network) -> None:
    shared.write(
        output.explain_stages_json(network.prepared)
        if arguments.json
        else output.explain_stages(network.prepared, shared.table_width(arguments)),
        getattr(arguments, "output", None),
    )


def reading_options(command: argparse.ArgumentParser) -> None:
    """Options to read a model and to order what it computes."""
    bindings.binding_options(command)
    bindings.state_options(command)
    command.add_argument(
        "--external-data", action="store_true",
        help="read weights from files beside the model, where the model refers to them",
    )  # fmt: skip
    command.add_argument(
        "--optimize", choices=("speed", "memory"), default="speed",
        help="memory: the order of nodes in which tensors take least memory at a time (speed)",
    )  # fmt: skip
    command.add_argument(
        "--update", choices=("auto", "fused", "diffused"), default="auto",
        help="gradients of recurrent weights: fused into every step, or diffused, by a product "
        "behind all steps (auto: as the model decides)",
    )  # fmt: skip
    command.add_argument(
        "--keep-denormals", action="store_true",
        help="compute with numbers below 2^-126 as they are; by default they count as 0",
    )  # fmt: skip


def _model_options(command: argparse.ArgumentParser) -> None:
    """Options to read the model and to search its layers."""
    reading_options(command)
    command.add_argument(
        "--dtype", type=targets.named_dtype, choices=targets.DTYPES, default="f32",
        help="type of weights and of tensors between layers (f32)",
    )  # fmt: skip
    weights.weights_options(command)
    shared.level_option(command, None, "measure, with --explain estimate")
    shared.algorithm_option(command)
    shared.verify_option(command)
    command.add_argument(
        "--time-limit", type=shared.seconds, metavar="S", help="end the search after S seconds"
    )
    command.add_argument(
        "--threads", action=ThreadsAction, metavar="N|KIND|KIND:N",
        help="number of threads (POLYSCI_NUM_THREADS, else 1), and with -o who starts them: openmp "
        "(the default), pthread (the library itself), callback (a pool of yours); none is one "
        "thread; with --isa wasm128 a number alone, of workers and the thread that calls",
    )  # fmt: skip
    command.set_defaults(pool=KINDS[0])
    scheduler_option(command)
    shared.machine_options(command, threads_option=False)
    shared.device_option(command)
    tuner_options(command)


def _output_options(command: argparse.ArgumentParser) -> None:
    """Options for the output."""
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "-o", dest="out", metavar="DIR", help="write a C project to DIR; with --isa wasm128 "
        "a module of WebAssembly, with what runs it in browsers and in Node",
    )  # fmt: skip
    what.add_argument(
        "--debug-layers", action="store_true",
        help="compare every tensor with a float64 reference and name the first that is wrong",
    )  # fmt: skip
    what.add_argument(
        "--check", action="store_true",
        help="the same with a bound for each tensor, of what f32 must lose; bf16 has that of "
        "--debug-layers",
    )  # fmt: skip
    what.add_argument(
        "--explain", action="store_true", help="tell which nodes are fused, and why others are not"
    )
    command.add_argument(
        "--show", metavar="FORM",
        help="ir, c, asm: print the code as loop IR, as C files or as the assembly that the C "
        "compiler makes of them; passes: tell what each pass changes in the model, passes:NAME: "
        "line by line what one of them does",
    )  # fmt: skip
    output.output_options(command)
    command.add_argument(
        "--name", metavar="NAME", help="name of files and symbols (the model's name)"
    )
    command.add_argument(
        "--force", action="store_true", help="with -o: write to a folder that holds other files"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile, then print, compare or write; 1 if a stage is found wrong."""
    _check(arguments)
    tuner_of(arguments)
    peers = _peers(arguments)
    if bindings.several_sizes(arguments):
        return output.write_sizes(
            arguments, lambda dims: _graph(arguments, dims),
            lambda graph, sizes: _plan_size(arguments, graph, sizes),
        )  # fmt: skip
    if arguments.show is not None and arguments.show not in shared.FORMS:
        return _show_passes(arguments)
    graph = _graph(arguments, bindings.dims_of(arguments))
    if arguments.scheduler is not None:
        status = targets.compile_on_farm(arguments, graph)
        if status is not None:
            return status
    if chosen := targets.targets_of(arguments):
        return targets.write_for(chosen, arguments, graph)
    network = _compile(arguments, graph)
    if arguments.explain:
        _write_explanation(arguments, network)
        return 0
    if arguments.show:
        _show_code(arguments, network)
        return 0
    if arguments.debug_layers or arguments.check:
        return _debug(arguments, network)
    if arguments.out:
        output.write_output(arguments, network)
        if not (peers or arguments.json or arguments.output):
            return 0
    _show(arguments, network, peers)
    return 0


def network_of(arguments: argparse.Namespace) -> Network:
    """Return the compiled network of a command's MODEL. Raises SpecError for wrong options."""
    bindings.check_bindings(arguments)
    return _compile(arguments, _graph(arguments, bindings.dims_of(arguments)))


def _plan_size(arguments: argparse.Namespace, graph: Graph, sizes: RunSizes) -> PlannedNetwork:
    """Return a network for one choice of sizes, which nothing has run yet."""
    if shared.device_of(arguments) and (chosen := targets.targets_of(arguments)):
        return targets.plan_for(chosen[0], arguments, graph)
    if not sizes.spans:
        return _compile(arguments, graph)
    from polysci.network.size_choices import plan_sizes

    title = targets.title_of(arguments)
    return _with_display(arguments, lambda options: plan_sizes(graph, sizes, options, title))


def _graph(arguments: argparse.Namespace, dims: Mapping[str, int]) -> Graph:
    """Return the model for sizes of its free dimensions."""
    from polysci.network.prepare import graph_of

    values, external = dict(arguments.value), arguments.external_data
    kept = bindings.kept_state(arguments)
    ranges = bindings.has_ranges(arguments)
    graph = graph_of(
        arguments.model, dims, values, external=external, kept=kept, any_size=ranges,
        device=getattr(arguments, "device", None), most=dict(arguments.most),
    )  # fmt: skip
    return weights.narrow(arguments, graph)


def _compile(arguments: argparse.Namespace, model: Model | Graph, **changes: Any) -> Network:
    """Compile a model by the options of a command, with a line a layer; ``changes`` are others."""
    from polysci.network.compiled import compile_network

    if getattr(arguments, "weights", weights.F32) != weights.F32 and model is arguments.model:
        changes.pop("most", None)
        model = _graph(arguments, changes.pop("dims", None) or {})
    return _with_display(arguments, partial(compile_network, model), **changes)


def _with_display(
    arguments: argparse.Namespace, compile_with: Callable[[CompileOptions], T], **changes: Any
) -> T:
    """Compile by the options of a command, with a line a layer; ``changes`` are others."""
    from polysci.cli.display import Display
    from polysci.runtime.backends import backend_named
    from polysci.target.target import HOST
    from polysci.text.tables import time_text
    from polysci.tune import Progress

    runs = backend_named(getattr(arguments, "device", None) or HOST).measured
    if not getattr(arguments, "level", None) and (getattr(arguments, "explain", False) or not runs):
        changes["level"] = "estimate"
    with Display(0) as display:

        def watch(problem: Problem, step: Progress | Result) -> None:
            if isinstance(step, Progress):
                display.watch(problem, step)
                return
            display.done(describe_result(step))
            if display.finished == display.layers:
                display.note("comparing schedules inside the network, compiling")

        best = inf

        def show(step: Progress) -> None:
            nonlocal best
            if step.stage == "layers":
                display.layers = step.total
            elif step.best and step.best < best:
                best = step.best
                display.note(f"{step.stage} {step.done}/{step.total}: {time_text(best)} a run")

        options = targets.compile_options(arguments, watch=watch, progress=show, **changes)
        return compile_with(options)


def _check(arguments: argparse.Namespace) -> None:
    """Raise SpecError for options that exclude each other, before any work is done."""
    from polysci.frontends.table import front_end_of
    from polysci.peers.contest import LEAST_ROUNDS

    readers = front_end_of(arguments.model).peers
    if arguments.compare and (other := [*set(arguments.compare) & _PEERS - {*readers}]):
        readers = readers or ("no runtime that --compare knows",)
        raise SpecError(f"--compare {other[0]}: this model is for {' and '.join(readers)}")
    output.check_output(arguments)
    bindings.check_bindings(arguments)
    bindings.check_inputs(arguments)
    if arguments.compare and (arguments.explain or arguments.debug_layers or arguments.check):
        raise SpecError("--compare: times the network; leave out what only explains or checks it")
    for option in ("compare", "json", "explain", "check", "debug-layers", "out"):
        if arguments.show and getattr(arguments, option.replace("-", "_")):
            name = "-o" if option == "out" else f"--{option}"
            raise SpecError(f"--show {arguments.show}: prints text alone; leave out {name}")
    if shared.device_of(arguments):  # an unknown one is told at once
        _check_device(arguments)
    if arguments.rounds is not None and not arguments.compare:
        raise SpecError("--rounds: turns of a comparison; it needs --compare")
    if arguments.rounds is not None and arguments.rounds < LEAST_ROUNDS:
        raise SpecError(f"--rounds {arguments.rounds}: expected at least {LEAST_ROUNDS}")
    if arguments.name is not None and not arguments.name.strip():
        raise SpecError("--name: expected a name, got an empty one")
    if arguments.out:
        output.check_folder(arguments, targets.title_of(arguments))


def _check_device(arguments: argparse.Namespace) -> None:
    """Raise SpecError for options that say nothing of the code of a device.

    UnsupportedError: nothing runs on it.
    """
    from polysci.runtime.backends import backend_named

    runs = backend_named(arguments.device).measured
    if not (runs or arguments.out or arguments.show or arguments.explain):
        raise UnsupportedError(
            f"--device {arguments.device}: compiles code and runs none, which a device does, such "
            "as cuda:0; -o DIR writes a project, --show c prints the code"
        )
    if arguments.compare:
        raise SpecError(f"--device {arguments.device}: peers run on the CPU; leave out --compare")
    if arguments.tuner:
        raise SpecError(f"--device {arguments.device}: tuners time layers; leave out --tuner")
    for option in ("python", "freestanding", "isas", "packed-weights"):
        if getattr(arguments, option.replace("-", "_")):
            raise SpecError(
                f"--device {arguments.device}: written with a host in C, which packs weights on "
                f"the device; leave out --{option}"
            )
    if arguments.pool != KINDS[0]:
        raise SpecError(
            f"--device {arguments.device}: its units share the work; leave out --threads "
            f"{arguments.pool}"
        )


def _peers(arguments: argparse.Namespace) -> list[Peer]:
    if not arguments.compare:
        return []
    from polysci.peers.networks.compare import installed_peers

    return installed_peers(arguments.compare, shared.say)


def _show_passes(arguments: argparse.Namespace) -> int:
    """Write what every pass does to the model, or the lines that one of them changes."""
    from polysci.network.prepare import find_steps, trace_passes

    what, _, name = arguments.show.partition(":")
    if what != "passes":
        forms = ", ".join(shared.FORMS)
        raise SpecError(f"--show {arguments.show}: expected {forms}, passes, or passes:NAME")
    kept = bindings.kept_state(arguments)
    options = targets.compile_options(
        arguments, dims=bindings.dims_of(arguments), tuner=None, state=kept.pairs,
        positions=kept.positions, mask=kept.mask, most=dict(arguments.most),
    )  # fmt: skip
    steps = trace_passes(arguments.model, options)
    text = (
        output.describe_pass(find_steps(steps, name)) if name
        else output.describe_passes(steps, shared.table_width(arguments))
    )  # fmt: skip
    shared.write(text, arguments.output)
    return 0


def _show_code(arguments: argparse.Namespace, network: Network) -> None:
    """Write the network's code as loop IR, C or assembly."""
    if arguments.show == "ir":
        text = str(network.ir)
    else:
        text = network.source if arguments.show == "c" else network.asm
    shared.write(text.rstrip("\n"), arguments.output)


def _debug(arguments: argparse.Namespace, network: Network) -> int:
    from polysci.frontends.table import front_end_of
    from polysci.network.compiled import rebuild_network
    from polysci.network.debug import compare_tensors, first_wrong

    apart, inputs = rebuild_network(network, apart=True), bindings.inputs_of_run(arguments, network)
    reference = front_end_of(arguments.model).reference
    dims, values = bindings.dims_of(arguments), dict(arguments.value)
    run = reference and reference(arguments.model, dims, values)
    rows = compare_tensors(apart, inputs, strict=arguments.check, run=run)
    width = shared.table_width(arguments)
    text = (
        output.describe_errors_json(rows)
        if arguments.json
        else output.describe_errors(rows, width=width)
    )
    shared.write(text, arguments.output)
    return int(first_wrong(rows) is not None)


def _show(arguments: argparse.Namespace, network: Network, peers: list[Peer]) -> None:
    """Write the stages' times, and the comparison with ``peers``."""
    from polysci.peers.contest import ROUNDS
    from polysci.peers.networks.compare import compare_networks, f32_loss

    # A wrong file is told at once.
    inputs = bindings.inputs_of_run(arguments, network) if peers else {}
    report, comparison, loss = network.report(), None, None
    if peers:
        comparison = compare_networks(
            network, arguments.model, peers, dims=bindings.dims_of(arguments),
            values=dict(arguments.value), rounds=arguments.rounds or ROUNDS, inputs=inputs,
        )  # fmt: skip
        if network.dtype != "f32":
            loss = f32_loss(network, inputs)
    if arguments.json:
        summary = json.dumps(output.summary_of(network, report, comparison, loss))
        rows = [json.dumps(row) for row in report.json_rows()]
        shared.write("\n".join([*rows, summary]), arguments.output)
        return
    width = shared.table_width(arguments)
    lines = [report.text(width), *output.comparison_lines(comparison, loss, width)]
    shared.write("\n".join(lines), arguments.output)
