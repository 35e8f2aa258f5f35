"""Programs of torch.export as networks: extents, weights, files, and what the command line does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.cli import main
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.pytorch.program import load_program

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Net(nn.Module):
    """Two branches, and a table of embeddings whose weights are those of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.table, self.last = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.last.weight = self.table.weight
        self.conv[1].running_var.uniform_(0.5, 2)

    def forward(self, x: Any, words: Any) -> Any:
        y = self.conv(x).mean((2, 3))[:, None] + self.table(words)
        return {"scores": self.last(y), "y": y}


def exported(**words: Any) -> Any:
    inputs = (torch.zeros(2, 3, 6, 8), torch.zeros(2, 5, dtype=torch.int64))
    return torch.export.export(Net().eval(), inputs, **words)


def free() -> Any:
    """Images and their height are free."""
    images, height = torch.export.Dim("images", max=64), torch.export.Dim.AUTO
    return exported(dynamic_shapes={"x": {0: images, 2: height}, "words": {0: images}})


def test_a_program_is_compiled() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 6, 8)).astype(np.float32)
    words = random.integers(0, 10, (2, 5))
    net = polysci.compile_network(exported(), "estimate")
    assert [port.name for port in net.inputs] == ["x", "words"]
    expected = Net().eval().double()(torch.tensor(x).double(), torch.tensor(words))
    for made, wanted in zip(net({"x": x, "words": words}).values(), expected.values(), strict=True):
        np.testing.assert_allclose(made, wanted.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_tied_weights_are_one_constant() -> None:
    graph = load_program(exported())
    assert sum(value.shape == (10, 8) for value in graph.constants.values()) == 1


def test_free_dimensions_are_bound() -> None:
    graph = load_program(free(), {"words.0": 5, "x.2": 9})
    assert [tensor.shape for tensor in graph.inputs] == [(5, 3, 9, 8), (5, 5)]
    assert [tensor.shape for tensor in graph.outputs] == [(5, 5, 10), (5, 5, 8)]


def test_inputs_are_bound_to_values() -> None:
    graph = load_program(exported(), values={"words": 3})
    assert [tensor.name for tensor in graph.inputs] == ["x"]


@pytest.mark.parametrize(
    ("dims", "values", "reason"),
    [
        ({}, {}, "dimensions x.0, x.2 are free; bind them: --dim x.0=1 --dim x.2=1"),
        ({"x.0": 3, "x.2": 4, "x.1": 3}, {}, "dimension 'x.1': no input has a free one"),
        ({"x.0": 99, "x.2": 4}, {}, "sizes that the program does not take"),
        ({"x.0": 3, "x.2": 4}, {"z": 1}, "value of 'z': no input has that name"),
        ({"x.0": 3, "x.2": 4}, {"words": [1, 2]}, "2 numbers for the shape [3, 5]"),
    ],
)
def test_wrong_bindings_are_refused(
    dims: dict[str, int], values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecError) as error:
        load_program(free(), dims, values)
    assert reason in str(error.value)


def test_running_statistics_are_state() -> None:
    """A program that changes its buffers: every run reads what the last one left of them."""
    norm = nn.BatchNorm1d(3)
    x = torch.randn(4, 3)
    network = polysci.compile_network(torch.export.export(norm, (x,)), "estimate")
    for _ in range(3):
        with torch.no_grad():
            expected = norm(x).numpy()
        np.testing.assert_allclose(network(x.numpy()), expected, rtol=1e-5, atol=1e-6)
    state = {name: value.numpy() for name, value in norm.state_dict().items() if "run" in name}
    for name, value in state.items():
        np.testing.assert_allclose(network.state[name], value, rtol=1e-5, atol=1e-6)
    assert network.state["num_batches_tracked"] == norm.num_batches_tracked == 3


def test_weights_of_bf16_are_refused() -> None:
    layer = nn.Linear(3, 2).bfloat16()
    program = torch.export.export(layer, (torch.zeros(1, 3, dtype=torch.bfloat16),))
    with pytest.raises(UnsupportedError, match="tensor of bfloat16 on cpu"):
        load_program(program)


def test_calls_of_vmap_are_not_made_to_fix_sizes() -> None:
    """They would leave the process inside of one."""
    mapped = nn.Sequential(nn.Linear(4, 3))
    mapped.forward = lambda x: torch.vmap(lambda row: mapped[0](row).sin())(x)
    rows, x = torch.export.Dim("rows", max=8), torch.ones(5, 4)
    program = torch.export.export(mapped.eval(), (x,), dynamic_shapes=[{0: rows}])
    assert any("vmap" in node.name for node in program.graph.nodes)
    net = polysci.compile_network(program, "estimate", dims={"x.0": 6})
    x = torch.randn(6, 4)  # which fails inside of one
    np.testing.assert_allclose(net(x.numpy()), mapped(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("saved", [False, True])
def test_sizes_are_fixed_without_another_export(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, path = free(), tmp_path / "net.pt2"
    if saved:
        torch.export.save(program, path)
    expected = load_program(exported())
    monkeypatch.delattr(torch.export, "export")
    graph = load_program(path if saved else program, {"x.0": 2, "x.2": 6})
    assert [*graph.tensors.items()] == [*expected.tensors.items()]
    assert [(it.op, it.inputs) for it in graph.nodes] == [
        (it.op, it.inputs) for it in expected.nodes
    ]


def test_a_saved_program_is_checked_against_pytorch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(free(), path)
    words = ["compile", str(path), "--level", "estimate", "--dim", "x.0=2", "--dim", "x.2=5"]
    assert main([*words, "--check"]) == 0
    assert "linear" in capsys.readouterr().out


def test_files_that_are_no_programs_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "net.pt2"
    with pytest.raises(SpecError, match="no such file"):
        polysci.compile_network(str(path))
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(SpecError, match=r"no program of torch\.export"):
        polysci.compile_network(path)
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(SpecError, match=r"torch\.save wrote it; torch\.export\.save"):
        polysci.compile_network(path)
    assert not caplog.records  # torch's traceback
