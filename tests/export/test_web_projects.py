"""Networks as WebAssembly, in Node and in a browser: results, errors, files, tools that lack."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.errors import NoCompilerError
from polysci.export.web_build import find_wasm_compiler
from polysci.export.web_project import ARRAYS
from polysci.network.compiled import compile_network
from polysci.network.debug import BOUNDS
from polysci.target.isas import ISAS
from tests.support import browsers, wasm
from tests.support.browsers import Page
from tests.support.command import done, polysci
from tests.support.compiling import HOSTILE, saved, tiny
from tests.support.kernelunit import ROOT
from tests.support.onnxmodels import model, node, reals

pytestmark = pytest.mark.skipif("POLYSCI_ISA" in os.environ, reason="code above a cap is refused")
WEB = ("--isa", "wasm128", "--level", "estimate")
RUN = ROOT / "tests/data/web_run.mjs"


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    wasm.need()


def written(made: onnx.ModelProto, folder: Path, *words: str) -> Path:
    """The directory of a model called ``net``."""
    done("compile", saved(made, folder / "net.onnx"), *WEB, *words, "-o", folder / "net")
    return folder / "net"


def run(out: Path, *asked: Any, reset: bool = False) -> dict[str, Any]:
    """What the network says to each of some inputs."""
    (out.parent / "asked.json").write_text(json.dumps({"asked": asked, "reset": reset}))
    ran = wasm.node(RUN, out / "net.js", out.parent / "asked.json")
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


def passes(out: Path, outputs: int = 1) -> None:
    """The self-test of an export."""
    ran = wasm.node(out / "selftest.mjs")
    assert ran.returncode == 0 and f"{outputs} passed, 0 failed" in ran.stdout, ran.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tiny(), tmp_path_factory.mktemp("web"))


def test_a_network_runs_and_refuses_what_is_wrong(project: Path) -> None:
    x = reals(1, 4, 8, 8, seed=5)
    array = ["Float32Array", x.ravel().tolist()]
    right, alone, *wrong = run(
        project, {"x": array}, array, {"x": ["Float32Array", [1, 2]]}, {"x": ["Float64Array", [1]]},
        {"x": array, "z": array}, {}, {"x": ["Array", [1]]},
    )["said"]  # fmt: skip
    expected = compile_network(tiny(), "estimate", isa="portable")(x)
    np.testing.assert_allclose(right["y"], expected.ravel(), rtol=1e-4, atol=1e-5)
    assert alone == right
    needed = "expected a Float32Array of length 256 (1 x 4 x 8 x 8)"
    assert wrong == [
        f'RangeError: input "x": {needed}, got length 2',
        f'TypeError: input "x": {needed}, got Float64Array',
        'TypeError: run: no input "z"; this network has "x"',
        f'TypeError: input "x" is missing: {needed}',
        f'TypeError: input "x": {needed}, got Array',
    ]
    passes(project)


def test_its_files(project: Path) -> None:
    names = {"index.html", "net.d.ts", "net.js", "net.wasm", "net.weights", "package.json"}
    assert {path.name for path in project.iterdir()} == names | {
        "README.md", "selftest.data", "selftest.mjs",
    }  # fmt: skip
    assert '"x": Float32Array;' in (project / "net.d.ts").read_text()
    assert (project / "net.wasm").stat().st_size < 100_000
    assert json.loads((project / "package.json").read_text())["type"] == "module"


@pytest.mark.exhaustive
def test_an_export_is_replaced_and_other_files_are_not(project: Path, tmp_path: Path) -> None:
    copy, path = tmp_path / "copy", saved(tiny(), tmp_path / "net.onnx")
    shutil.copytree(project, copy)
    done("compile", path, *WEB, "-o", copy)
    passes(copy)
    (copy / "own.txt").touch()
    told = polysci("compile", path, *WEB, "-o", copy)
    assert told.returncode == 2 and "holds other files ('own.txt')" in told.stderr


@pytest.mark.exhaustive
def test_damaged_files_are_told(project: Path, tmp_path: Path) -> None:
    for name, change, reason in (
        ("net.weights", lambda data: data[:-4], "net.weights: the weights are cut short"),
        ("net.weights", lambda data: b"x" + data[1:], "not the weights of this network"),
        ("net.wasm", lambda data: b"x" + data[1:], "net: its module does not compile here"),
    ):
        shutil.copytree(project, tmp_path / "net", dirs_exist_ok=True)
        path = tmp_path / "net" / name
        path.write_bytes(change(path.read_bytes()))
        ran = wasm.node(tmp_path / "net/selftest.mjs")
        assert ran.returncode == 1 and reason in ran.stderr, ran.stderr


def recurrent() -> onnx.ModelProto:
    weights = {"w": reals(1, 32, 6), "r": reals(1, 32, 8, seed=1), "b": reals(1, 64, seed=2)}
    nodes = [node("LSTM", "x w r b", "y h c", hidden_size=8)]
    return model(nodes, {"x": (5, 1, 6)}, {"y": (5, 1, 1, 8), "c": (1, 1, 8)}, weights)


def attention() -> onnx.ModelProto:
    weights = {name: 0.3 * reals(16, 16, seed=at) for at, name in enumerate("qkvo")}
    nodes = [
        *(node("MatMul", f"x {name}", f"x{name}") for name in "qkv"),
        node("Transpose", "xk", "t", perm=[0, 2, 1]),
        node("MatMul", "xq t", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p xv", "m"),
        node("MatMul", "m o", "n"),
        node("Add", "n x", "a"),
        node("Gelu", "a", "y", approximate="none"),
    ]
    return model(nodes, {"x": (2, 7, 16)}, {"y": (2, 7, 16)}, weights, opset=20)


def quantised() -> onnx.ModelProto:
    """A convolution and a product of 8 bits."""
    draw = np.random.default_rng(0)
    weights = {
        "s": np.float32(0.02), "z": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0),
        "w": draw.integers(-99, 99, (8, 4, 3, 3)).astype(np.int8),
        "m": draw.integers(-99, 99, (8, 6)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "w ws wz", "wd"),
        node("Conv", "xd wd", "c", kernel_shape=[3, 3]),
        node("Relu", "c", "r"),
        node("QuantizeLinear", "r s z", "rq"),
        node("DequantizeLinear", "rq s z", "rd"),
        node("GlobalAveragePool", "rd", "g"),
        node("Flatten", "g", "f"),
        node("QuantizeLinear", "f s z", "fq"),
        node("DequantizeLinear", "fq s z", "fd"),
        node("DequantizeLinear", "m ws wz", "md"),
        node("MatMul", "fd md", "y"),
    ]
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return model(nodes, {"x": (1, 4, 8, 8)}, {"y": (1, 6)}, arrays)


def embedding() -> onnx.ModelProto:
    """Two inputs, one of them whole numbers, with names that are no identifiers."""
    graph = helper.make_graph(
        [node("Gather", "table ids", "rows"), helper.make_node("Mul", ["rows", HOSTILE], ["y"])],
        "small",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, (3,)),
            helper.make_tensor_value_info(HOSTILE, TensorProto.FLOAT, (5,)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 5))],
        [numpy_helper.from_array(reals(10, 5), "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "lstm": recurrent, "attention": attention, "int8": quantised, "embedding": embedding,
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("embed", [False, True], ids=["beside", "inside"])
@pytest.mark.parametrize("name", MODELS)
def test_kinds_of_networks_agree_with_c(tmp_path: Path, name: str, embed: bool) -> None:
    made = MODELS[name]()
    out = written(made, tmp_path, *["--embed"] * embed)
    assert (out / "net.weights").exists() != embed
    network = compile_network(tmp_path / "net.onnx", "estimate", isa="portable")
    passes(out, len(network.outputs))
    draw = np.random.default_rng(1)
    given = {
        port.name: draw.integers(0, 9, port.shape) if port.dtype == "int64"
        else draw.uniform(-1, 1, port.shape).astype(port.dtype)
        for port in network.inputs
    }  # fmt: skip
    kinds = {port.name: ARRAYS[port.dtype] for port in network.inputs}
    said = run(out, {key: [kinds[key], array.ravel().tolist()] for key, array in given.items()})
    results = network(given)
    results = results if isinstance(results, dict) else {network.outputs[0].name: results}
    for key, expected in results.items():
        got = np.reshape(said["said"][0][key], expected.shape)
        bound = 1e-5 * max(1, float(np.abs(expected).max()))
        np.testing.assert_allclose(got, expected, atol=bound, rtol=0)
    assert [port["shape"] for port in said["inputs"]] == [[*port.shape] for port in network.inputs]


@pytest.mark.exhaustive
def test_roundings_to_8_bits_widen_the_tolerance(tmp_path: Path) -> None:
    """Nothing runs when the self-test is made, and they may go the other way."""
    text = (written(quantised(), tmp_path) / "selftest.mjs").read_text()
    assert float(text.partition("TOLERANCE = ")[2].partition(",")[0]) > BOUNDS["f32"]
    assert "with 4 times what roundings to 8 bits move" in text


@pytest.mark.exhaustive
def test_words_of_layers_and_bf16(tmp_path: Path) -> None:
    words = ("mlp:4x64x10", *WEB, "--dtype", "bf16", "--name", "net", "-o", tmp_path / "net")
    done("compile", *words)
    passes(tmp_path / "net")


@pytest.mark.exhaustive
def test_lengths_that_data_decides(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "i"), node("Cast", "i", "y", to=TensorProto.FLOAT)]
    out = written(model(nodes, {"x": (2, 3)}, {"y": (2, "n")}), tmp_path)
    (said,) = run(out, ["Float32Array", [0, 5, 0, 7, 0, 1]])["said"]
    assert said["y"] == [0, 1, 1, 1, 0, 2]


@pytest.mark.exhaustive
def test_state_is_kept_and_begins_anew(tmp_path: Path) -> None:
    made = model([node("Add", "x past", "now")], {"x": (2,), "past": (2,)}, {"now": (2,)})
    made.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,)))
    made.graph.node.append(node("Mul", "now now", "y"))
    out = written(made, tmp_path, "--state", "past=now")
    asked = [{"x": ["Float32Array", [1, 2]]}] * 3
    assert [said["y"] for said in run(out, *asked)["said"]] == [[1, 4], [4, 16], [9, 36]]
    assert [said["y"] for said in run(out, *asked, reset=True)["said"]] == [[1, 4]] * 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--threads", "pthread:2"), "--threads pthread: threads of WebAssembly are workers"),
        (("--threads", "callback:2"), "--threads callback: threads of WebAssembly are workers"),
        (("--packed-weights",), "packed weights: a module of WebAssembly packs them"),
        (("--freestanding",), "--freestanding"),
        (("--python",), "--isa wasm128: a package holds code that runs here"),
    ],
)
def test_what_makes_no_sense_is_refused(words: Sequence[str], reason: str, tmp_path: Path) -> None:
    told = polysci("compile", "mlp:4x8x2", *WEB, *words, "-o", tmp_path / "net")
    assert told.returncode == 2 and reason in told.stderr, told.stderr
    assert not (tmp_path / "net").exists()


def test_options_of_load(project: Path, tmp_path: Path) -> None:
    """Sources may come by name; one thread is all that there is."""
    script = tmp_path / "options.mjs"
    script.write_text(
        f"""import {{ readFileSync }} from "node:fs";
        import {{ load }} from "{project / "net.js"}";
        const wasm = readFileSync("{project / "net.wasm"}");
        const weights = readFileSync("{project / "net.weights"}");
        const nets = [await load({{ wasm, weights, threads: 1 }}), await load({{}})];
        const x = new Float32Array(256).fill(1);
        const same = (net) => net.run(x).y[0] === net.run({{ x }}).y[0];
        console.log(nets.map((net) => [net.threads, same(net)]).join());
        nets[0].close();
        await load(wasm).catch(console.log);
        await load({{ threads: 2 }});
        """
    )
    ran = wasm.node(script)
    same, wrong = ran.stdout.splitlines()[:2]
    assert same == "1,true,1,true", ran.stderr
    assert (
        wrong
        == "TypeError: load: expected an object with any of wasm, weights, threads, or nothing"
    )
    assert "RangeError: load: threads: expected 1, got 2; polysci compile --threads N" in ran.stderr


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = polysci("compile", "mlp:4x8x2", *WEB, "-o", tmp_path / "net", POLYSCI_WASM_CC="no-such")
    assert told.returncode != 0 and "POLYSCI_WASM_CC='no-such': no such program" in told.stderr
    monkeypatch.setenv("POLYSCI_WASM_CC", shutil.which("false") or "false")
    with pytest.raises(NoCompilerError, match=r"apt install clang lld wasi-libc .*ziglang"):
        find_wasm_compiler(ISAS["wasm128"])
    monkeypatch.setenv("POLYSCI_WASM_CC", shutil.which("true") or "true")
    with pytest.raises(NoCompilerError, match="wrote no module of WebAssembly"):
        find_wasm_compiler(ISAS["wasm128"])
    monkeypatch.setenv("POLYSCI_WASM_CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("polysci.export.web_build.find_spec", lambda name: None)
    with pytest.raises(NoCompilerError, match="no clang, no ziglang"):
        find_wasm_compiler(ISAS["wasm128"])


@pytest.mark.exhaustive
def test_ziglang_compiles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang", reason="a compiler with the C library of WASI")
    node_path = shutil.which(wasm.RUNNER)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = written(tiny(), tmp_path)
    monkeypatch.setattr(wasm, "RUNNER", node_path)
    passes(out)


@pytest.mark.exhaustive
def test_the_best_module_that_runs_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wasm.compiler_of("wasmrelaxed")
    path, out = saved(tiny(), tmp_path / "net.onnx"), tmp_path / "net"
    words = ("--isas", "wasm128,wasmrelaxed", "--level", "estimate", "-o", out)
    done("compile", path, *words)
    modules = {name: out / f"net_{name}.wasm" for name in ("wasm128", "wasmrelaxed")}
    passes(out)
    modules["wasm128"].rename(tmp_path / "kept")
    passes(out)
    (tmp_path / "kept").rename(modules["wasm128"])
    modules["wasmrelaxed"].unlink()
    if wasm.relaxed():
        monkeypatch.setattr(wasm, "relaxed", tuple)
        passes(out)
    told = polysci("compile", path, "--isas", "wasm128,portable", *words[2:])
    assert told.returncode == 2 and "portable: no instruction set of WebAssembly" in told.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("browser", browsers.parameters())
def test_the_page_runs_in_a_browser(browser: str, project: Path, tmp_path: Path) -> None:
    page = Page(project, "#time", "Loading ...")
    seen = browsers.look(browser, page, tmp_path / "profile")
    assert "ms a run (median of 20" in seen.text and seen.faults == []
