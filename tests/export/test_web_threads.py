"""Networks as WebAssembly in several threads, in Node and in browsers."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from polysci.export import web_project
from polysci.export.wasm_binary import custom_section, pages_of_import
from polysci.network.compiled import compile_network
from tests.export.test_thread_pools import convolutions, steps_and_updates
from tests.export.test_web_projects import MODELS, passes, recurrent, run, written
from tests.printers.test_sanitized import every_form
from tests.support import browsers, wasm
from tests.support.browsers import Page
from tests.support.command import done
from tests.support.compiling import saved, tiny
from tests.support.kernelunit import ROOT

pytestmark = pytest.mark.skipif("POLYSCI_ISA" in os.environ, reason="code above a cap is refused")
SCRIPT = ROOT / "tests/data/web_threads.mjs"
FAULTS = ROOT / "tests/data/web_faults.mjs"
# Ahead of a thread's part of a run: by the first number of x it traps, or leaves the memory.
FAULT = """\
    const float first = *(const float *)m.in[0];
    if (first == (thread ? 1000 : -1000) * (thread ? (float)thread : 1))
        thread == 2 ? (void)(*(volatile char *)0xfffffff0u = 1) : __builtin_trap();
    share(&m);
"""
OWNER = """\
<!doctype html><html><head><link rel="icon" href="data:,"></head><body><p id="said">...</p>
<script type="module">
const worker = new Worker("owner.js", { type: "module" });
worker.onmessage = ({ data }) => document.querySelector("#said").textContent = data;
</script></body></html>
"""
OWNER_SCRIPT = """\
import { load } from "./net.js";
const nets = [await load({ threads: 1 }), await load({ threads: 3 }), await load({ threads: 2 })];
const x = Float32Array.from({ length: 256 }, (_, i) => Math.sin(i));
const results = nets.map((net) => Array.from({ length: 20 }, () => net.run({ x }).y.join()));
for (const net of nets) net.close();
postMessage(`${nets.map((net) => net.threads)} ${new Set(results.flat()).size}`);
"""
ENDS = """\
import { setTimeout } from "node:timers/promises";
import { load } from "./net.js";
const net = await load({ threads: 2 });
await setTimeout(300);
try {
  net.run({ x: new Float32Array(256) });
} catch (error) {
  console.log(error.message);
}
"""
ISOLATED = "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp"


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    wasm.need()


def said(out: Path, threads: int, runs: int) -> dict[str, Any]:
    """What the network says in one thread and in several, in so many runs each."""
    ran = wasm.node(SCRIPT, out / "net.js", f"{threads}", f"{runs}")
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def agree(told: dict[str, Any], threads: int, runs: int) -> None:
    """All runs give the bits of one thread, also where the first one may not sleep."""
    assert told["few"] == 1
    ways = [{"threads": count, "same": runs} for count in range(2, threads + 1)]
    assert told["ways"] == ways
    assert told["awake"] == told["beside"][1] == told["page"][1] == runs and told["together"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tiny(), tmp_path_factory.mktemp("web"), "--threads", "3")


def test_threads_share_runs_and_sleep_between_them(project: Path) -> None:
    told = said(project, 3, 50)
    agree(told, 3, 50)
    assert told["beside"][0] in range(1, 4) and told["page"][0] == 1 and told["isolated"] == 2
    assert told["idle"] < 0.2, "seconds of the processor while 4 threads wait for 0.4 s"
    closed, none, more, text, symbol, option, page = told["refused"]
    assert closed == "Error: run: this network is closed"
    needed = "RangeError: load: threads: expected a whole number from 1 to 3, got"
    assert [wrong.partition(";")[0] for wrong in (none, more, text, symbol)] == [
        f"{needed} 0", f"{needed} 4", f'{needed} "2"', f"{needed} Symbol(two)",
    ]  # fmt: skip
    assert option == 'TypeError: load: no option "thread"; expected wasm, weights, threads'
    assert page.startswith("Error: load: threads: 2 cannot run here: this page is not cross-origin")
    assert ISOLATED in page
    passes(project)


def test_its_files_and_its_server(project: Path) -> None:
    package = json.loads((project / "package.json").read_text())
    assert "net.worker.js" in package["files"] and (project / "net.worker.js").exists()
    assert "threads?: number;" in (project / "net.d.ts").read_text()
    assert ISOLATED.split()[0] in (project / "README.md").read_text()
    command = [sys.executable, "serve.py", "0"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as server:  # fmt: skip
        assert server.stdout
        address = server.stdout.readline().strip()
        with contextlib.ExitStack() as stack:
            stack.callback(server.terminate)
            for name in ("", "/net.worker.js", "/no-such-file"):
                try:
                    headers = urllib.request.urlopen(f"{address}{name}", timeout=30).headers
                except urllib.error.HTTPError as error:
                    headers = error.headers
                    error.close()
                sent = [headers[f"Cross-Origin-{which}-Policy"] for which in ("Opener", "Embedder")]
                assert sent == ["same-origin", "require-corp"]
            taken = address.rpartition(":")[2]
            for port, fault in ((taken, "Address already in use"), ("65536", "below 65536")):
                told = subprocess.run([*command[:2], port], cwd=project, stderr=subprocess.PIPE,
                                      text=True, check=False)  # fmt: skip
                assert told.returncode == 2 and fault in told.stderr.splitlines()[-1]


def test_pages_of_an_imported_memory() -> None:
    memory = b"\x03env\x06memory\x02\x03\x81\x02\xff\xff\x03"  # 257 pages, at most 65535, shared
    imports = b"\x01" + memory
    section = bytes([2, len(imports)]) + imports
    assert pages_of_import(b"\0asm\1\0\0\0" + custom_section("first", b"x" * 300) + section) == 257
    two = b"\x02" + memory
    for other in (b"", bytes([2, len(two)]) + two, custom_section("first", b"")):
        with pytest.raises(ValueError, match="imports a memory and nothing else"):
            pages_of_import(b"\0asm\1\0\0\0" + other)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("made", "embed"),
    [(every_form, False), (steps_and_updates, True), (convolutions, False), (recurrent, True)],
)
def test_kinds_of_networks(
    made: Callable[[], onnx.ModelProto], embed: bool, tmp_path: Path
) -> None:
    algorithm = ["--algorithm", "winograd"] if made is convolutions else []
    out = written(made(), tmp_path, "--threads", "4", *algorithm, *["--embed"] * embed)
    agree(said(out, 4, 20), 4, 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_they_pass_their_tests(name: str, tmp_path: Path) -> None:
    out = written(MODELS[name](), tmp_path, "--threads", "2")
    network = compile_network(tmp_path / "net.onnx", "estimate", isa="portable")
    passes(out, len(network.outputs))


@pytest.mark.exhaustive
def test_state_is_kept_and_begins_anew(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["x", "past"], ["now"])]
    graph = onnx.helper.make_graph(
        nodes, "sum",
        [onnx.helper.make_tensor_value_info(name, 1, [64]) for name in ("x", "past")],
        [onnx.helper.make_tensor_value_info("now", 1, [64])],
    )  # fmt: skip
    graph.node.append(onnx.helper.make_node("Mul", ["now", "now"], ["y"]))
    graph.output.append(onnx.helper.make_tensor_value_info("y", 1, [64]))
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    out = written(made, tmp_path, "--state", "past=now", "--threads", "2")
    asked = [{"x": ["Float32Array", [2] * 64]}] * 3
    assert [its["y"][0] for its in run(out, *asked)["said"]] == [4, 16, 36]
    assert [its["y"][63] for its in run(out, *asked, reset=True)["said"]] == [4, 4, 4]


@pytest.mark.exhaustive
def test_a_thread_that_does_not_start_is_told(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "net"
    shutil.copytree(project, out)
    (out / "net.worker.js").unlink()
    ran = wasm.node(out / "selftest.mjs")
    assert ran.returncode == 1 and "load: a thread does not start: Cannot find" in ran.stderr


def test_a_thread_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells why, in whichever thread that was, and so does every later run."""
    build = web_project.build_module

    def faulty(files: Mapping[str, str], *given: Any, **named: Any) -> bytes:
        changed = {path: text.replace("    share(&m);\n", FAULT) for path, text in files.items()}
        assert changed != files
        return build(changed, *given, **named)

    monkeypatch.setattr(web_project, "build_module", faulty)
    out = written(tiny(), tmp_path, "--threads", "3")
    ran = wasm.node(FAULTS, out / "net.js", "3")
    assert ran.returncode == 0, ran.stderr
    for told in (tried := json.loads(ran.stdout)):
        fault = "memory access out of bounds" if told["first"] == 2000 else "unreachable"
        reason = f"run: this network has failed, load it again: RuntimeError: {fault}"
        assert told["told"] == [True, reason, reason, reason]
    assert [(told["threads"], told["first"]) for told in tried] == [
        (1, -1000), (2, -1000), (2, 1000), (3, -1000), (3, 1000), (3, 2000), (3, 1000),
    ]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("process.exit(3);", "it ended with code 3"),
        ("throw new RangeError('no memory');", "RangeError: no memory"),
    ],
)
def test_a_thread_that_ends_at_its_start_is_told(
    fault: str, reason: str, project: Path, tmp_path: Path
) -> None:
    out = tmp_path / "net"
    shutil.copytree(project, out)
    text, line = (out / "net.worker.js").read_text(), "exports.__stack_pointer.value = stack;"
    assert line in text
    (out / "net.worker.js").write_text(text.replace(line, fault, 1))
    ran = wasm.node(out / "selftest.mjs")
    assert ran.returncode == 1 and f"load: a thread does not start: {reason}" in ran.stderr


@pytest.mark.exhaustive
def test_a_thread_that_ends_between_runs_is_told(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "net"
    shutil.copytree(project, out)
    text = (out / "net.worker.js").read_text()
    work = "exports.work(worker); //"
    assert work in text
    (out / "net.worker.js").write_text(text.replace(work, "process.exit(3); //"))
    (out / "ends.mjs").write_text(ENDS)
    ran = wasm.node(out / "ends.mjs")
    reason = "run: this network has failed, load it again: a thread has ended: it ended with code 3"
    assert (ran.stdout, ran.stderr) == (f"{reason}\n", "")


@pytest.mark.exhaustive
def test_modules_of_several_instruction_sets(tmp_path: Path) -> None:
    """Of another compiler as well, which has a C library with atomics."""
    wasm.compiler_of("wasmrelaxed")
    path, out = saved(tiny(), tmp_path / "net.onnx"), tmp_path / "net"
    words = ("--isas", "wasm128,wasmrelaxed", "--level", "estimate", "--threads", "2", "-o", out)
    done("compile", path, *words)
    passes(out)
    (out / "net_wasmrelaxed.wasm").unlink()
    (out / "net_wasm128.wasm").rename(out / "net_wasmrelaxed.wasm")
    passes(out)


@pytest.mark.exhaustive
@pytest.mark.parametrize("browser", browsers.parameters())
@pytest.mark.parametrize("isolated", [False, True], ids=["apart", "isolated"])
def test_the_page_in_browsers(project: Path, browser: str, isolated: bool, tmp_path: Path) -> None:
    processors = "navigator.hardwareConcurrency"
    page = Page(project, "#time", "Loading ...", processors, isolated=isolated)
    seen = browsers.look(browser, page, tmp_path / "profile")
    assert seen.faults == []
    few = "one thread, as this page is not cross-origin isolated: python3 serve.py serves it so"
    threads = min(3, seen.value)
    told = (f"{threads} threads" if threads > 1 else "one thread") if isolated else few
    assert re.match(rf"[\d.]+ ms a run in {re.escape(told)} \(median of 20", seen.text), seen.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("browser", browsers.parameters())
def test_a_worker_of_a_page_owns_threads(project: Path, browser: str, tmp_path: Path) -> None:
    """It sleeps where it waits, which the page itself may not."""
    folder = tmp_path / "net"
    shutil.copytree(project, folder)
    (folder / "index.html").write_text(OWNER)
    (folder / "owner.js").write_text(OWNER_SCRIPT)
    page = Page(folder, "#said", "...", isolated=True)
    seen = browsers.look(browser, page, tmp_path / "profile")
    assert (seen.text, seen.faults) == ("1,3,2 1", [])
