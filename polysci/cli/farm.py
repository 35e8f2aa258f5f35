"""polysci farm: workers that search for others, and what a scheduler has of them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from polysci.cli import layers as shared
from polysci.cli.schedulers import check_dask, connect_client
from polysci.errors import FarmError

HELP = "search on many machines: start a worker, or list those of a scheduler"
MORE = (
    "'dask scheduler' starts the scheduler. optimize, compile and export use its workers with "
    "--scheduler ADDRESS."
)


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    actions = command.add_subparsers(metavar="ACTION", required=True, dest="action")
    worker = actions.add_parser(
        "worker", help="compile and time for the searches of a scheduler, until Ctrl-C"
    )
    worker.add_argument("address", metavar="ADDRESS", help="of the scheduler: tcp://HOST:8786")
    worker.add_argument(
        "--nthreads", type=shared.positive, metavar="N",
        help="tasks at a time; one of them at most takes times (the number of cores)",
    )  # fmt: skip
    worker.add_argument(
        "--no-timing", action="store_true", help="compile for others, and take no times"
    )
    worker.add_argument(
        "--device", metavar="NAME",
        help="take times on a device, as opencl:0, in place of the CPU; 'polysci machine' lists "
        "devices",
    )  # fmt: skip
    worker.add_argument("--name", metavar="NAME", help="of the worker, for logs and the dashboard")
    for option in ("tls-ca-file", "tls-cert", "tls-key"):
        worker.add_argument(f"--{option}", metavar="FILE", help="as 'dask worker' takes it")
    shared.isa_option(worker)
    status = actions.add_parser("status", help="list the workers, their machines and versions")
    status.add_argument("address", metavar="ADDRESS", help="of the scheduler")
    status.add_argument("--json", action="store_true", help="print a JSON line for each worker")
    shared.wide_option(status)


def run(arguments: argparse.Namespace) -> int:
    """Do the action."""
    return (_work if arguments.action == "worker" else _status)(arguments)


def _work(arguments: argparse.Namespace) -> int:
    """Be a worker of dask's, with the resource that tasks which take times ask for."""
    check_dask()
    from distributed.cli.dask_worker import main

    from polysci.farm.addresses import check_address, check_certificates
    from polysci.farm.cluster import TIMING
    from polysci.farm.tasks import DEVICE
    from polysci.target.host import detect

    check_address(arguments.address)
    if not arguments.tls_ca_file:
        check_certificates(arguments.address, "worker")
    if arguments.isa:
        os.environ["POLYSCI_ISA"] = detect(arguments.isa).isa.name
    command = [arguments.address, "--nworkers", "1"]
    command += ["--nthreads", str(arguments.nthreads or detect().cores)]
    device = shared.device_of(arguments)
    named = f" {DEVICE}{device.backend}=1" if device else ""
    command += ["--resources", f"{TIMING}={int(not arguments.no_timing)}{named}"]
    for option in ("name", "tls_ca_file", "tls_cert", "tls_key"):
        if value := getattr(arguments, option):
            command += [f"--{option.replace('_', '-')}", value]
    try:
        main(command, prog_name="polysci farm worker")
    except RuntimeError as error:  # what dask logged before it says why
        raise FarmError(f"{arguments.address}: the worker did not start: {error}") from error
    return 0


def _status(arguments: argparse.Namespace) -> int:
    """Print a line for each worker; 1 if there is one that searches cannot use."""
    check_dask()
    from polysci.farm.addresses import find_dashboard
    from polysci.farm.cluster import TIMING
    from polysci.farm.tasks import describe, installed_version, target_of
    from polysci.target.target import HOST
    from polysci.text.tables import fit

    def machine_text(answer: Mapping[str, Any]) -> str:
        target = target_of(answer["target"])
        device = "" if target.backend == HOST else f"{target.backend} {target.model_name}: "
        return f"{device}{target} {answer['machine']}"

    with connect_client(arguments.address) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        answers = client.run(describe, on_error="return")
        tasks, dashboard = client.processing(), find_dashboard(client)
    head = ("worker", "machine", "timing", "tasks", "version", "fault")
    rows = [head]
    for address, answer in sorted(answers.items()):
        name = str(workers[address]["name"]) if address in workers else address
        if isinstance(answer, Exception):
            rows.append((name, "", "", "", "", str(answer).partition("\n")[0]))
            continue
        other = "" if answer["version"] == installed_version() else "another version"
        rows.append((
            name, machine_text(answer),
            str(int(answer["resources"].get(TIMING, 0))), str(len(tasks.get(address, ()))),
            answer["version"], other,
        ))  # fmt: skip
    if arguments.json:
        for row in rows[1:]:
            print(json.dumps(dict(zip(head, row, strict=True))))
    else:
        print(fit(rows, shared.table_width(arguments), drop=("version",), left=head))
        print(f"{len(answers)} workers; dashboard: {dashboard or 'none'}")
    return int(any(row[-1] for row in rows[1:]))
