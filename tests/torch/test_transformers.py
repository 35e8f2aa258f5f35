"""Models of the package `transformers` compute what eager does, with the outputs they return."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnx")
from polysci.torch import optimize  # noqa: E402
from tests.support.torch_results import compare, leaves  # noqa: E402
from tests.support.transformers_models import CASES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
PARTS = ("FNetModel",)  # PyTorch computes its Fourier transforms


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", CASES)
def test_models_compute_what_eager_does(name: str) -> None:
    module, inputs = CASES[name].module(), CASES[name].example()
    with torch.no_grad():
        module(**inputs)  # RWKV scales its weights in its first call
    optimized = optimize(module, (), "estimate", example_words=inputs, threads=1)
    assert not optimized.report.refused or name in PARTS, optimized.report
    assert bool(optimized.report.parts), optimized.report
    if CASES[name].runs_in_f64:
        compare(module, optimized, **inputs)
    else:
        with torch.no_grad():
            pairs = zip(leaves(optimized(**inputs)), leaves(module(**inputs)), strict=True)
            for own, eager in pairs:
                torch.testing.assert_close(own, eager)


def test_a_decoder_returns_its_cache() -> None:
    """The cache is of the same class, and eager goes on with it."""
    case = CASES["LlamaForCausalLM"]
    module, ids = case.module(), case.example()["input_ids"]
    optimized = optimize(module, (), "estimate", example_words={"input_ids": ids}, threads=1)
    assert len(optimized.report.parts) == 1
    with torch.no_grad():
        eager, own = module(ids), optimized(input_ids=ids)
        assert type(own) is type(eager)
        assert type(own.past_key_values) is type(eager.past_key_values)
        following = [
            module(ids[:, :1], past_key_values=result.past_key_values).logits
            for result in (eager, own)
        ]
    assert own.past_key_values.get_seq_length() == ids.shape[1] + 1
    torch.testing.assert_close(following[1], following[0])


@pytest.mark.exhaustive
def test_a_decoder_of_a_range_of_lengths() -> None:
    """With grouped heads, a causal mask, tables of positions, and the cache that it returns."""
    case, tokens = CASES["LlamaForCausalLM"], torch.export.Dim("tokens", min=5, max=8)
    module, ids = case.module(), case.example()["input_ids"][:, :5]
    optimized = optimize(
        module, (), "estimate", example_words={"input_ids": ids}, threads=1, ranges=True,
        dynamic_shapes={"input_ids": {1: tokens}},
    )  # fmt: skip
    for length in (8, 5, 7):
        longer = torch.randint(0, 30, (len(ids), length))
        with torch.no_grad():
            own, eager = optimized(input_ids=longer), module(longer)
        assert own.past_key_values.get_seq_length() == length
        torch.testing.assert_close(own.logits, eager.logits)


def test_a_cache_that_is_an_input_is_written_by_pytorch() -> None:
    case = CASES["LlamaForCausalLM"]
    module, ids = case.module(), case.example()["input_ids"]
    words: dict[str, Any] = {"input_ids": ids, "past_key_values": transformers.DynamicCache()}
    optimized = optimize(module, (), "estimate", example_words=words, threads=1)
    assert "a cache of keys and values that is an input" in str(optimized.report)
