"""A peer's worker process: ``python -m polysci.peers NAME``, JSON lines in and out."""

import importlib
import sys

from polysci.peers import PEERS
from polysci.runtime.worker_process import serve


def main() -> None:
    """Answer questions to the peer named on the command line until stdin ends."""
    module, _, name = PEERS[sys.argv[1]].service.partition(":")
    service = getattr(importlib.import_module(module), name)()
    serve(service, service.operations)


if __name__ == "__main__":
    main()
