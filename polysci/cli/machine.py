"""polysci machine: what was detected, what was calibrated."""

from __future__ import annotations

import argparse
from typing import Any

from polysci.cli import layers as shared

_HELP = "show what was detected of this machine and what was measured"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser("machine", help=_HELP, description=_HELP, allow_abbrev=False)
    command.add_argument("--calibrate", action="store_true", help="measure now, even if known")
    command.add_argument("--isa", metavar="NAME", help="cap the instruction set")
    command.add_argument("--kernels", action="store_true", help="the rate of every microkernel")
    command.add_argument("-o", "--output", metavar="FILE", help="write the description as TOML")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Print the description; measure what was never measured only on request."""
    from polysci import calibrate
    from polysci.tabular import columns

    target = shared.target_of(asked)
    if asked.calibrate:
        shared.say("measuring this machine (about 15 seconds)")
        calibrate.calibrate(target)
    rows = [*target.rows()]
    known = calibrate.known(target)
    if known is None:
        rows.append(("measured", "nothing yet: polysci machine --calibrate"))
    else:
        rates = {"FMA peak": known.peak, "L2 reads": known.l2, "L3 reads": known.l3}
        rates |= {"memory reads": known.memory}
        units = {"FMA peak": "GFLOP/s, one core, f32"}
        rows += [(name, f"{rate:.1f} {units.get(name, 'GB/s')}") for name, rate in rates.items()]
        rows.append(("measured in", str(calibrate.stored(target))))
        if asked.kernels:
            rows += [(name, f"{100 * e:.0f} % of peak") for name, e in known.efficiency.items()]
    print(columns(rows, left=(0, 1), indent=""))
    if asked.output:
        shared.write(target.to_toml().rstrip("\n"), asked.output)
    return 0
