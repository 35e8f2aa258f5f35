"""A trained model's step as a C project: the library, its state, and a function around both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Final

from polysci.export import folder
from polysci.export.networks.c_project import (
    check_project,
    files,
    leftovers,
    network_sources,
)
from polysci.export.networks.selftest_data import (
    SelftestData,
    as_stored,
    compare_with_reference,
    difference,
    shake,
)
from polysci.export.networks.sized_networks import only_size
from polysci.frontends.onnx import reference
from polysci.network.code import arguments_of
from polysci.network.compiled import Network
from polysci.network.runner import TensorPort
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array, round_up
from polysci.printers.network import RunArgument
from polysci.text import templates
from polysci.text.names import remark

STEPS: Final = 3


def make_step_data(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array]
) -> SelftestData:
    """Steps from ``held`` on, by the network and by the reference in float64; ``held`` stays.

    Outputs are the losses, then what is replaced. Raises CheckError where they are too far apart.
    """
    replaced = _replaced(network)
    loss, *_ = [port for port in network.outputs if port.name not in replaced]
    kept = [port for port in network.outputs if port.name in replaced]

    def learn(values: Mapping[str, Array]) -> list[Array]:
        """The arrays that the reference makes, from these values on."""
        state, losses = dict(values), list[Array]()
        for made in _steps(network, state, batch):
            losses.append(as_stored(made[loss.name], loss))
            state |= {replaced[port.name]: made[port.name] for port in kept}
        return [*losses, *(as_stored(state[replaced[port.name]], port) for port in kept)]

    expected, ports = learn(held), [loss] * STEPS + kept
    return compare_with_reference(
        network, [batch[port.name] for port in network.inputs], ports,
        _run(network, held, batch, loss), expected,
        lambda: difference(learn(shake(held)), expected, ports),
        "training.gradcheck compares the gradients of each parameter",
    )  # fmt: skip


def _replaced(network: Network) -> dict[str, str]:
    """Return, by the name of an output, the input whose memory it takes."""
    program = network.prepared.program
    pairs = zip(program.titles, program.outputs, strict=True)
    return {title: program.in_place[name] for title, name in pairs if name in program.in_place}


def _steps(
    network: Network, state: Mapping[str, Array], batch: Mapping[str, Array]
) -> Iterator[dict[str, Array]]:
    """Yield what the reference makes in each step of ``state`` as it is then."""
    names = [port.name for port in network.outputs]
    for _ in range(STEPS):
        yield reference.run_outputs(network.prepared.graph, {**state, **batch}, names)


def _run(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array], loss: TensorPort
) -> list[Array]:
    """The losses that the network makes, and then what it replaces in a copy of ``held``."""
    replaced, runner = _replaced(network), network.runner
    state = {name: aligned.reserve_copy(array) for name, array in held.items()}
    value = aligned.empty(loss.shape)
    results = [state[replaced[port.name]] if port is not loss else value
               for port in network.outputs]  # fmt: skip
    losses = list[Array]()
    for _ in range(STEPS):
        runner.into([batch[port.name] for port in network.inputs], results)
        losses.append(value.copy())
    return [*losses, *(array for array in results if array is not value)]


TEMPLATES = Path(__file__).with_name("templates")
LOSS = "loss"
_OWN = MappingProxyType({"{0}_step.h": "step.h", "main.c": "main.c", "selftest.c": "selftest.c"})
STEP_TOLD = (
    "* `{0}_step.h` has `{0}_step`, a step of training on a block of memory, which `{0}.state` "
    "fills\n  with parameters and all else that steps replace; `{0}_run` replaces the outputs that "
    "its header says.\n"
)


def write_step(
    network: Network, held: Mapping[str, Array], batch: Mapping[str, Array], rate: str, out: Path,
    *, force: bool = False,
) -> list[Path]:  # fmt: skip
    """Write the C of a step with the values of ``held`` into a directory; the paths written.

    The self-test learns from ``batch``, which has the learning rate. Raises SpecError for a
    directory that holds other files (unless ``force``), CheckError for results that are wrong.
    """
    name, step = network.name, StepInterface(network, held, rate)
    state = f"{name}.state"
    check_project(out, name, force=force, more=(state,))
    told = make_step_data(network, held, batch)
    own = {path.format(name): TEMPLATES / file for path, file in _OWN.items()}
    project = files(
        only_size(network), network_sources(network), [told], own=own, more=step.values()
    )
    contents = {**project, state: lambda: _bytes(held)}
    return folder.write(out, contents, leftovers=(*leftovers(name), state), force=force)


@dataclass(frozen=True, slots=True)
class StepInterface:
    """Signature of a step: ``held`` lie one behind the other in the state."""

    network: Network
    held: Mapping[str, Array]
    rate: str

    @property
    def places(self) -> dict[str, int]:
        """Bytes before each of them; by the empty name all of them."""
        sizes = [round_up(array.nbytes) for array in self.held.values()]
        return dict(zip([*self.held, ""], [0, *accumulate(sizes)], strict=True))

    def replaced(self, port: RunArgument) -> str | None:
        """The tensor that an output replaces."""
        program = self.network.prepared.program
        titles = dict(zip(program.titles, map(program.in_place.get, program.outputs), strict=True))
        return titles.get(port.title)

    def values(self) -> dict[str, str]:
        """Return the values of the templates."""
        places, ports = self.places, arguments_of(self.network.prepared.program)
        inputs = [port for port in ports if port.word.startswith("x")]
        outputs = [self.replaced(port) for port in ports[len(inputs) :]]
        rows = [
            f" *   byte {places[key]:>10}  {array.dtype} {list(array.shape)} ({remark(key)})"
            for key, array in self.held.items()
        ]
        return {
            "STATE_SIZE": str(places[""]),
            "ROWS": "\n".join(rows),
            "STEP_PARAMETERS": ", ".join(map(self._parameter, inputs)),
            "STEP_ARGUMENTS": ", ".join(map(self._word, inputs)),
            "STEP_CALL": ", ".join(map(self._argument, ports)),
            "PASSED": ", ".join(map(self._passed, inputs)),
            "STATE_PLACES": templates.fill(
                TEMPLATES / "places.c",
                {"PLACES": ", ".join(str(places[key] if key else 0) for key in outputs)},
            ),
            "STEPS": str(STEPS),
            "LOSS_AT": str(outputs.index(None)),
            "RATE_AT": str([port.title for port in inputs].index(self.rate)),
            "BATCH": " and ".join(remark(port.title) for port in inputs if port.title != self.rate),
            "SIZES_TOLD": STEP_TOLD.format(self.network.name),
        }

    def _word(self, port: RunArgument) -> str:
        return self.rate if port.title == self.rate else port.word

    def _parameter(self, port: RunArgument) -> str:
        if port.title == self.rate:
            return f"{port.kind} {self.rate}"
        return f"const {port.kind} *{port.word}"

    def _argument(self, port: RunArgument) -> str:
        """Return an argument of the run inside a step."""
        if port.word.startswith("x"):
            return f"&{self.rate}" if port.title == self.rate else port.word
        key = self.replaced(port)
        return f"({port.kind} *)(at + {self.places[key]})" if key else f"&{LOSS}"

    def _passed(self, port: RunArgument) -> str:
        """An argument of a step out of an array of pointers."""
        at = f"x[{port.word.removeprefix('x')}]"
        return f"*(const {port.kind} *){at}" if port.title == self.rate else at


def _bytes(held: Mapping[str, Array]) -> Iterable[bytes]:
    """All tensors, each up to a whole line."""
    for array in held.values():
        yield array.tobytes() + bytes(round_up(array.nbytes) - array.nbytes)
