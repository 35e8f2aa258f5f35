"""polysci machine: show what was detected and calibrated."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polysci.cli import layers as shared
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.target.machine import Machine
    from polysci.target.target import Target

HELP = "show what was detected and measured of this machine or a device, or write it to a file"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--calibrate", action="store_true", help="measure again")
    command.add_argument(
        "--device", metavar="NAME",
        help="show a device, as opencl:0, and measure of it what is not known yet",
    )  # fmt: skip
    shared.isa_option(command)
    command.add_argument(
        "--kernels", action="store_true", help="print the rate of every microkernel"
    )
    command.add_argument(
        "-o", "--output", metavar="FILE.toml",
        help="write a machine file, to read, to edit and for --machine of other commands",
    )  # fmt: skip
    command.add_argument(
        "--machine", metavar="FILE.toml", help="show the machine that FILE.toml describes"
    )
    shared.wide_option(command)


def run(arguments: argparse.Namespace) -> int:
    """Print the description; measure a CPU only on request, a device where it was not."""
    from polysci.target.machine import assume_rates
    from polysci.target.machine_file import MachineFile
    from polysci.text.tables import pairs

    machine: Machine | None
    device = shared.device_of(arguments)
    description = shared.load_machine_file(arguments)
    if description and arguments.calibrate:
        raise SpecError("--calibrate measures this machine, not that of --machine")
    target = shared.target_of(arguments)
    if device:
        machine, origin = _device(device, arguments.calibrate)
        rows = [*target.rows(), *_figures(device, machine, arguments.kernels)]
    else:
        machine, origin = (
            (description.machine, arguments.machine)
            if description
            else _load_or_measure(target, arguments.calibrate)
        )
        rows = [*target.rows(), *_rates(machine, arguments.kernels), *_devices()]
    print(pairs(rows, shared.table_width(arguments), indent=""))
    if machine and origin:  # a path is too long for a column
        print(f"{'described' if description else 'measured'} in {origin}")
    if arguments.output:
        text = MachineFile(target, machine or assume_rates(target)).to_toml()
        shared.write(text.rstrip("\n"), arguments.output)
        shared.say(f"written: {arguments.output}{'' if machine else ', with assumed rates'}")
    return 0


def _load_or_measure(target: Target, again: bool) -> tuple[Machine | None, str]:
    """The measured parameters of this machine, and their file."""
    from polysci.tune import calibrate

    if again:
        calibrate.calibrate(target)
    return calibrate.load_rates(target), str(calibrate.machine_path(target))


def _device(target: Target, again: bool) -> tuple[Machine, str]:
    """Return the figures of a device, and their file; none of an architecture's, which are assumed.

    What is missing is measured now, or everything ``again``.
    """
    from polysci.runtime.backends import backend_of
    from polysci.target.machine import assume_rates
    from polysci.tune import calibrate

    if not backend_of(target).measured and not again:
        return assume_rates(target), ""
    known = calibrate.load_rates(target)
    if again or known is None or not known.measured:
        known = calibrate.measure_device(target, again=again)
    return known, str(calibrate.machine_path(target))


def _figures(target: Target, machine: Machine, kernels: bool) -> Iterator[tuple[str, str]]:
    """Yield the figures of a device with their units, and whether they are measured or assumed."""
    from polysci.tune.device_calibration import figure_names, values_of

    values, names = values_of(machine), figure_names(target)
    for name in names:
        error = machine.errors.get(name)
        said = "assumed" if error is None else f"± {error:.2g}, measured"
        if name in values and (kernels or name not in machine.efficiency):
            unit, meaning = _note(machine, name)
            yield meaning, f"{values[name]:.4g} {unit} ({said})"
    if machine.efficiency and not kernels:
        yield "rates of register tiles", f"{len(machine.efficiency)} (measured; --kernels)"
    if missing := [name for name in names if name not in machine.errors]:
        again = f"; again: polysci machine --device {target.backend}" * bool(machine.errors)
        yield "not measured", f"{len(missing)} of {len(names)} figures{again}"


def _note(machine: Machine, name: str) -> tuple[str, str]:
    """Return unit and meaning of a figure of a device."""
    from polysci.target.machine_file import NOTES, note_of

    if name in machine.efficiency:
        return "of peak", name
    if name in machine.bandwidths and name not in NOTES:
        return "GB/s", f"{name} reads by one compute unit"
    return note_of(name)


def _devices() -> Iterator[tuple[str, str]]:
    """Yield the devices beside the CPUs by the names that ``--device`` takes; what they need."""
    from polysci.cli.diagnosis import device_parts_of_host

    yield from ((part.name, str(part)) for part in device_parts_of_host())


def _rates(machine: Machine | None, kernels: bool) -> Iterator[tuple[str, str]]:
    """Every number with its meaning, its unit and how well it is known."""
    from polysci.target.coefficients import SHARED
    from polysci.target.machine_file import note_of, numbers, origin_of

    if machine is None:
        yield "measured", "nothing yet: polysci machine --calibrate"
        return
    for name, value in numbers(machine).items():
        unit, meaning = note_of(name)
        origin = origin_of(machine, name)
        shown = origin if origin.startswith("±") else f"({origin})" * bool(origin)
        yield meaning, " ".join(filter(None, (f"{value:.4g}", unit, shown)))
    for row in SHARED.values():
        yield row.meaning, f"{row.prior:.4g} {row.unit} (every machine; {row.origin})"
    if kernels:
        for name, share in machine.efficiency.items():
            yield name, f"{100 * share:.0f} % of peak"
