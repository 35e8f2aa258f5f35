"""Wrong addresses of schedulers, and dask that is missing, are told at once, in a line."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest

from polysci import cli
from polysci.errors import FarmError, SpecError
from polysci.farm import addresses
from polysci.farm.addresses import (
    check_address,
    check_certificates,
    find_dashboard,
    greet,
    wait_for_port,
)
from tests.support.compiling import saved, tiny

EXAMPLE = "expected an address as tcp://HOST:8786"


@pytest.fixture
def refused() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "missing port number"),
        ("nonsense", "missing port number"),
        ("tcp://127.0.0.1", "missing port number"),
        ("tcp://:8786", "no host"),
        ("tcp://127.0.0.1:eight", "its port is no number"),
        ("tcp://127.0.0.1:0", "no port 0"),
        ("tcp://127.0.0.1:70000", "no port 70000"),
        ("tcp:/127.0.0.1:8786", "invalid address"),
        ("http://127.0.0.1:8786", "protocol 'http' is none of tcp, tls, ws, wss"),
        ("tpc://127.0.0.1:8786", "did you mean 'tcp'"),
        ("inproc://127.0.0.1:8786", "protocol 'inproc' is none of"),
    ],
)
def test_what_is_no_address(address: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match=EXAMPLE) as told:
        check_address(address)
    assert message in str(told.value)
    for words in (("optimize", "mm:8x8x8", "--scheduler"), ("farm", "worker"), ("farm", "status")):
        assert cli.main([*words, address]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "tcp://127.0.0.1:8786"])
def test_what_is_one(address: str) -> None:
    assert check_address(address) == ("tcp", "127.0.0.1", 8786)
    assert check_address("tls://[::1]:1") == ("tls", "::1", 1)


def test_where_nothing_listens(
    refused: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(addresses.wait_for_port, "__defaults__", (0.3,))
    assert cli.main(["farm", "status", refused]) == 1
    assert f"{refused}: no scheduler listens there" in capsys.readouterr().err


@pytest.mark.parametrize("sent", [b"", b"SSH-2.0-OpenSSH_9.2" * 9])
def test_what_listens_is_no_scheduler(sent: bytes) -> None:
    """It says nothing, like one that hangs, or something else."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        pool.submit(answer, server, sent)
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(FarmError, match=rf"{address}: no scheduler answers \(.+\); 'dask"):
            greet(address, 0.5)


def answer(server: socket.socket, sent: bytes) -> None:
    """Send that to the first client, and wait until it is gone."""
    client, _ = server.accept()
    with client, suppress(ConnectionError):
        client.sendall(sent)
        while client.recv(4096):
            pass


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(FarmError, match=r"no host is called 'no-such-host.invalid'"):
        wait_for_port("tcp://no-such-host.invalid:8786")


def test_tls_without_certificates(tmp_path: Path) -> None:
    check_certificates("tcp://127.0.0.1:8786", "client")
    with pytest.raises(FarmError, match=r"__TLS__CA_FILE.*__TLS__WORKER__CERT.*__WORKER__KEY"):
        check_certificates("tls://127.0.0.1:8786", "worker")
    names = ("ca-file", "client.cert", "client.key")
    files = {f"distributed.comm.tls.{name}": str(tmp_path / "none.pem") for name in names}
    with (
        dask.config.set(files),
        pytest.raises(FarmError, match=r"certificates of dask's configuration .* cannot be used"),
    ):
        check_certificates("tls://127.0.0.1:8786", "client")


class Silent(SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


def test_the_dashboard_is_named_where_it_is(tmp_path: Path) -> None:
    """An HTTP server alone is none, nor is a link to nothing, nor a scheduler without a link."""
    (tmp_path / "status").write_text("<p>Dask needs bokeh for the dashboard.</p>")
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=tmp_path)) as server,
        ThreadPoolExecutor() as pool,
    ):
        pool.submit(server.serve_forever)
        link = f"http://127.0.0.1:{server.server_port}/status"
        client = SimpleNamespace(dashboard_link=link)
        assert find_dashboard(client) == ""
        (tmp_path / "system").write_text("")
        assert find_dashboard(client) == link
        server.shutdown()
    assert find_dashboard(client) == ""
    assert find_dashboard(SimpleNamespace(dashboard_link=None)) == ""
    assert find_dashboard(SimpleNamespace(dashboard_link="/proxy/8787/status")) == ""


@pytest.mark.parametrize(
    "words",
    [("optimize", "mm:8x8x8", "--scheduler"), ("farm", "worker"), ("farm", "status"),
     ("export", "mm:8x8x8", "-o", "{folder}/out", "--scheduler"),
     ("compile", "{model}", "--scheduler")],
)  # fmt: skip
def test_without_dask(
    words: tuple[str, ...], refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = saved(tiny(), tmp_path / "tiny.onnx")
    for name in [name for name in sys.modules if name.startswith("polysci.farm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    command = [word.format(folder=tmp_path, model=model) for word in words]
    assert cli.main([*command, refused]) == 1
    assert "farms need dask.distributed: pip install 'polysci[farm]'" in capsys.readouterr().err


def test_the_package_without_dask() -> None:
    code = "import sys; sys.modules['distributed'] = None; import polysci.farm"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *_, last = ran.stderr.splitlines()
    assert last == (
        "ModuleNotFoundError: polysci.farm needs dask.distributed: pip install 'polysci[farm]'"
    )
