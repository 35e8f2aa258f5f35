"""``polysci.torch.optimize``: models compute what they did, in the ways PyTorch users call them."""

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch import optimize  # noqa: E402
from tests.support.torch_models import MODULES  # noqa: E402
from tests.support.torch_results import compare, leaves  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
# Whose inputs are images of any size.
IMAGES = [
    name for name, case in MODULES.items()
    if len(case.shapes[0]) == 3 and name not in (
        "vgg16", "vae", "dqn", "vit_ti", "swin", "mixer", "crnn", "diffusion", "keywords"
    )
]  # fmt: skip
# Of each kind of call one: windows, attention, words, recurrent layers, parametrisations, ties.
KINDS = ("mobilenet_v3", "vit_ti", "ncf", "tagger", "tcn", "tied_autoencoder", "dqn")


@pytest.mark.sampled
@pytest.mark.parametrize("name", MODULES)
def test_models_are_one_part_that_computes_what_eager_does(name: str) -> None:
    module, inputs = MODULES[name].module(), MODULES[name].inputs()
    optimized = optimize(module, inputs, "estimate")
    assert not optimized.report.refused and len(optimized.report.parts) == 1
    compare(module, optimized, *inputs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_and_odd_sizes(name: str) -> None:
    case = MODULES[name]
    module = case.module().to(memory_format=torch.channels_last)
    inputs = [
        torch.nn.functional.pad(x, (0, 3, 0, 1)).to(memory_format=torch.channels_last)
        for x in case.inputs(3)
    ]
    optimized = optimize(module, inputs, "estimate")
    assert not optimized.report.refused and len(optimized.report.parts) == 1
    compare(module, optimized, *inputs)
    compare(module, optimized, *(x.contiguous() for x in inputs))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_batches_of_any_size(name: str) -> None:
    """One that is free: others are compiled when they come, of none and of one too."""
    case = MODULES[name]
    module, free = case.module(), torch.export.Dim("batch", min=0, max=8)
    shapes = tuple({0: free} for _ in case.shapes)
    optimized = optimize(module, case.inputs(), "estimate", dynamic_shapes=shapes)
    for batch in (3, 1, 0):
        compare(module, optimized, *case.inputs(batch))


def _saved(module: Any) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("copied", [copy.deepcopy, _saved])
@pytest.mark.parametrize("name", KINDS)
def test_copies_and_files(name: str, copied: Callable[[Any], Any]) -> None:
    module, inputs = MODULES[name].module(), MODULES[name].inputs()
    optimized = optimize(module, inputs, "estimate")
    if copied is _saved and name == "tcn":
        with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
            copied(optimized)  # as PyTorch does for the module itself
        return
    other = copied(optimized)
    assert all(map(torch.equal, leaves(optimized(*inputs)), leaves(other(*inputs))))
    assert other.state_dict().keys() == module.state_dict().keys()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_modes_strides_and_threads(name: str) -> None:
    module, inputs = MODULES[name].module(), MODULES[name].inputs()
    optimized = optimize(module, inputs, "estimate")
    wanted = leaves(optimized(*inputs))
    apart = [torch.stack([x, x], -1)[..., 0] for x in inputs]  # every second element
    assert any(not x.is_contiguous() for x in apart)

    def run(at: int) -> list[Any]:
        with torch.inference_mode(bool(at % 2)):
            return leaves(optimized(*(apart if at % 3 else inputs)))

    with ThreadPoolExecutor(4) as pool:
        runs = [*pool.map(run, range(12))]
    with torch.autocast("cpu", torch.bfloat16):
        runs.append(leaves(optimized(*inputs)))
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, wanted, strict=True))
