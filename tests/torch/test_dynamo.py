"""``torch.compile(model, backend="polysci")``: results, sizes, weights, and what goes elsewhere."""

import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch import dynamo  # noqa: E402
from tests.support.torch_models import MODULES  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
ROOT = Path(__file__).parents[2]
RECURRENT = ("tagger", "gru_encoder", "crnn")  # which TorchDynamo does not enter


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What becomes of every graph and size: a variant, or None."""
    made, compile_own = list[Any](), dynamo.CompiledGraph._compile

    def compile_and_note(self: Any, inputs: Any) -> Any:
        made.append(compile_own(self, inputs))
        return made[-1]

    monkeypatch.setattr(dynamo.CompiledGraph, "_compile", compile_and_note)
    return made


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=dynamo.compile_graph, options={"rest": "eager", **options})


def compare(module: Any, other: Any, *inputs: Any) -> None:
    with torch.no_grad():
        pairs = zip(*(torch.utils._pytree.tree_leaves(m(*inputs)) for m in (module, other)),
                    strict=True)  # fmt: skip
        for eager, own in pairs:
            torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-4)


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, function = project["entry-points"]["torch_dynamo_backends"]["polysci"].split(":")
    assert getattr(import_module(name), function) is dynamo.compile_graph


@pytest.mark.parametrize("kind", ["plain", "first", "padded", "causal"])
def test_layers_that_are_one_operator_of_torch_are_compiled(kind: str, variants: list[Any]) -> None:
    torch.manual_seed(0)
    words = {"activation": "gelu", "norm_first": True} if kind == "first" else {}
    layer = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True, **words).eval()
    x, padding = torch.randn(2, 7, 24), torch.arange(7) >= torch.tensor([[5], [7]])
    masks = {"padded": {"src_key_padding_mask": padding}, "causal": {
        "src_mask": nn.Transformer.generate_square_subsequent_mask(7)
    }}.get(kind, {})  # fmt: skip
    compare(lambda x: layer(x, **masks), compiled(lambda x: layer(x, **masks)), x)
    (variant,) = variants
    assert not isinstance(variant.runs, nn.Module)  # one part, around which there is nothing


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def test_sizes_and_weights_may_change(variants: list[Any]) -> None:
    module = small()
    other = compiled(module)
    for batch in (2, 3, 4, 3):
        compare(module, other, torch.randn(batch, 3, 6, 7))
    assert len(variants) == 3 and all(variants)
    with torch.no_grad():
        module[0].weight.mul_(2)
        module[1].running_var.mul_(3)
    compare(module, other, torch.randn(2, 3, 6, 7))
    module.load_state_dict(small().state_dict())
    compare(module, other, torch.randn(2, 3, 6, 7))
    assert all(variants)


def test_every_size_follows_weights_that_torch_does_not_count(variants: list[Any]) -> None:
    module = small()
    other = compiled(module)
    images = [torch.randn(batch, 3, 6, 7) for batch in (2, 3)]
    changes: list[Any] = [
        lambda: setattr(module[0], "weight", nn.Parameter(torch.randn(4, 3, 3, 3))),
        lambda: setattr(module[0].weight, "data", torch.randn(4, 3, 3, 3)),
        lambda: module[0].weight.data.mul_(2),
        lambda: module[1].running_mean.numpy().fill(0.5),
    ]
    for change in (lambda: None, *changes):
        change()
        for x in images:
            compare(module, other, x)
    assert all(variants)
    made = len(variants)
    compare(module, other, images[0])
    assert len(variants) == made  # nothing changed: nothing is compiled


class Broken(nn.Module):
    """Breaks the graph, changes an input, and hands on a view."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.layer(x).relu()
        torch._dynamo.graph_break()
        x.add_(1)
        torch._dynamo.graph_break()
        return self.layer(y), x.view(-1)


def test_graphs_may_break_and_change_inputs(variants: list[Any]) -> None:
    torch.manual_seed(0)
    module, x = Broken().eval(), torch.ones(2, 4)
    with torch.no_grad():
        wanted = module(x.clone())
        made = compiled(module)(own := x.clone())
    assert torch.equal(own, x + 1)
    for a, b in zip(made, wanted, strict=True):
        torch.testing.assert_close(a, b)
    made[1].zero_()
    assert not own.any()  # it is a view still
    assert any(variants) and None in variants


def test_graphs_that_learn_go_elsewhere(variants: list[Any]) -> None:
    module = small().train()
    compiled(module)(torch.randn(2, 3, 6, 7)).sum().backward()
    assert module[0].weight.grad is not None and not variants


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"options": {"levl": "estimate"}}, "option 'levl'.*did you mean"),
        ({"options": {"rest": "none"}}, "option rest 'none': expected inductor or eager"),
        ({"options": {"level": "none"}}, "level 'none'"),
        ({"options": {"dtype": "f64"}}, "dtype 'f64'"),
        ({"mode": "reduce-overhead"}, "mode 'reduce-overhead'"),
    ],
)
def test_wrong_options(words: dict[str, Any], reason: str) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=reason):
        torch.compile(small(), backend=dynamo.compile_graph, **words)(torch.ones(2, 3, 6, 7))


class Bessel(nn.Module):
    """A call that polysci lacks, between two convolutions or alone."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        sizes = ((3, 4, 3), (4, 5, 1))
        layers = [nn.Identity() if alone else nn.Conv2d(*size) for size in sizes]
        self.first, self.last = layers

    def forward(self, x: Any) -> Any:
        return self.last(torch.special.bessel_j0(self.first(x)))


@pytest.fixture
def inductor_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that inductor compiles for polysci."""
    calls, compile_own = list[Any](), torch._inductor.compile

    def compile_and_note(graph: Any, *inputs: Any) -> Any:
        calls.append(graph)
        return compile_own(graph, *inputs)

    monkeypatch.setattr(torch._inductor, "compile", compile_and_note)
    return calls


def test_calls_between_parts_go_to_inductor(variants: list[Any], inductor_calls: list[Any]) -> None:
    module = Bessel(alone=False).eval()
    compare(module, compiled(module, rest="inductor"), torch.randn(2, 3, 6, 7))
    (variant,), (calls,) = variants, inductor_calls
    assert sum(hasattr(part, "network") for part in variant.runs.args[0].modules()) == 2
    assert [node.name for node in calls.graph.nodes if "bessel" in str(node.target)]


@pytest.mark.exhaustive
def test_graphs_without_parts_go_to_inductor(inductor_calls: list[Any]) -> None:
    """As they are, or once for each size of a graph of free sizes."""
    module = Bessel(alone=True).eval()
    compare(module, compiled(module, rest="inductor"), torch.randn(2, 3, 6, 7))
    assert not inductor_calls
    torch._dynamo.reset()
    other = torch.compile(module, backend=dynamo.compile_graph, dynamic=True)
    for batch in (2, 3, 2):
        compare(module, other, torch.randn(batch, 3, 6, 7))
    assert len(inductor_calls) == 2


def test_free_sizes_have_a_variant_each(variants: list[Any]) -> None:
    module = small()
    other = torch.compile(module, backend=dynamo.compile_graph, dynamic=True)
    for batch, rows in ((2, 6), (3, 7), (2, 6)):
        compare(module, other, torch.randn(batch, 3, rows, 8))
    assert len(variants) == 2 and all(variants)


def test_the_backend_has_a_name() -> None:
    if not entry_points(group="torch_dynamo_backends", name="polysci"):
        pytest.skip("polysci is not installed")
    module = small()
    compare(module, torch.compile(module, backend="polysci"), torch.randn(2, 3, 6, 7))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODULES)
def test_models_compute_what_eager_does(name: str, variants: list[Any]) -> None:
    module = MODULES[name].module()
    compare(module, compiled(module), *MODULES[name].inputs())
    assert all(variants)
    assert variants or name in RECURRENT


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["tagger", "gru_encoder"])
def test_recurrent_layers_are_compiled_where_torchdynamo_hands_them_on(
    name: str, variants: list[Any]
) -> None:
    module = MODULES[name].module()
    with torch._dynamo.config.patch(allow_rnn=True):
        compare(module, compiled(module), *MODULES[name].inputs())
    assert len(variants) == 1 and all(variants)
