"""The address of a dask scheduler, checked before dask waits for what will never answer."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import ProxyHandler, build_opener

from distributed import Client
from distributed.comm import connect
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.security import Security

from polysci.errors import FarmError, SpecError
from polysci.text.names import suggest

PROTOCOLS: Final = ("tcp", "tls", "ws", "wss")
REFUSED_S: Final = 10.0  # a scheduler that is started at the same time listens by then
ANSWER_S: Final = 10.0  # for a scheduler that listens, and to wait for one that is lost
PAGE_S: Final = 3.0  # for a page of the dashboard
_PORTS: Final = range(1, 1 << 16)
_ENCRYPTED: Final = ("tls", "wss")
_POLL_S: Final = 0.2


def check_address(address: str) -> tuple[str, str, int]:
    """Protocol, host and port. Raises SpecError where it is no address of a scheduler."""
    try:
        protocol, place = parse_address(address.strip())
        host, port = parse_host_port(place)
    except ValueError as error:
        number = "its port is no number" if "literal" in str(error) else str(error)
        raise _refusal(address, number) from None
    if protocol not in PROTOCOLS:
        known = f"{', '.join(PROTOCOLS)}{suggest(protocol, PROTOCOLS)}"
        raise _refusal(address, f"protocol {protocol!r} is none of {known}")
    if not host or port not in _PORTS:
        raise _refusal(address, f"no port {port}" if host else "no host")
    return protocol, host, port


def _refusal(address: str, reason: str) -> SpecError:
    return SpecError(f"scheduler {address!r}: {reason}; expected an address as tcp://HOST:8786")


def check_certificates(address: str, role: str) -> None:
    """Raise FarmError where dask's configuration lacks what TLS takes for a client or a worker."""
    protocol, *_ = check_address(address)
    if protocol not in _ENCRYPTED:
        return
    try:
        context = Security().get_connection_args(role)["ssl_context"]
    except (OSError, ValueError) as error:
        raise FarmError(
            f"{address}: the certificates of dask's configuration (distributed.comm.tls) cannot "
            f"be used: {error}"
        ) from error
    if context is None:
        names = "__CA_FILE", f"__{role.upper()}__CERT", f"__{role.upper()}__KEY"
        variables = ", ".join(f"DASK_DISTRIBUTED__COMM__TLS{name}" for name in names)
        raise FarmError(f"{address}: {protocol} needs certificates: set {variables} to their files")


def wait_for_port(address: str, limit_s: float = REFUSED_S) -> None:
    """Wait until something listens there. Raises FarmError if the host is unknown, or nothing does.

    What is slow or cannot be reached is left to dask, which waits longer.
    """
    _, host, port = check_address(address)
    until = time.monotonic() + limit_s
    while True:
        try:
            with suppress(TimeoutError):
                socket.create_connection((host, port), timeout=1.0).close()
            return
        except (socket.gaierror, UnicodeError):
            raise FarmError(f"{address}: no host is called {host!r}") from None
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise FarmError(
                    f"{address}: no scheduler listens there; 'dask scheduler' starts one"
                ) from None
        except OSError:
            return
        time.sleep(_POLL_S)


def greet(address: str, limit_s: float = ANSWER_S) -> None:
    """Say hello to the scheduler. Raises FarmError if what listens does not answer as one does.

    A ``Client`` waits for ever.
    """

    async def shake_hands() -> None:
        options = Security().get_connection_args("client")
        comm = await connect(address, timeout=limit_s, **options)
        await comm.close()

    try:
        asyncio.run(asyncio.wait_for(shake_hands(), limit_s))
    except Exception as error:  # what listens may be anything, and sends what dask cannot read
        reason = str(error).partition("\n")[0] or f"none within {limit_s:g} s"
        raise FarmError(
            f"{address}: no scheduler answers ({reason}); 'dask scheduler' starts one"
        ) from error


def find_dashboard(client: Client) -> str:
    """The address of the scheduler's dashboard; empty where it has none.

    dask's link is that of its HTTP server, which also runs with ``--no-dashboard`` and without
    bokeh; the page ``system`` is of the dashboard alone.
    """
    try:
        link = str(client.dashboard_link or "")
        build_opener(ProxyHandler({})).open(urljoin(link, "system"), timeout=PAGE_S).close()
    except HTTPError as error:  # no such page
        error.close()
        return ""
    except (KeyError, ValueError, OSError):  # no HTTP server, no URL
        return ""
    return link
