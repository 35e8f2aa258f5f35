"""``generate()`` of transformers by the backend: greedy tokens are those of eager."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="generate() is transformers'")
import polysci.torch  # noqa: E402, F401  # the backend
from polysci.network.compiled import compile_network  # noqa: E402
from polysci.torch import variants  # noqa: E402

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore"),  # what torch's parts warn each other of
]
PROMPT = [[3, 1, 4, 1, 5, 9, 2]]
SIZES = {"vocab_size": 61}


def model_of(kind: str) -> Any:
    """A model of one layer and random weights."""
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(
            **SIZES, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config).eval()
    config = transformers.GPT2Config(
        **SIZES, n_positions=256, n_embd=32, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(("cache", "count"), [("static", 200), ("dynamic", 2)])
def test_greedy_tokens_are_those_of_eager(kind: str, cache: str, count: int) -> None:
    """A cache that grows is compiled anew for each size: two tokens say whether it is right."""
    model, prompt = model_of(kind), torch.tensor(PROMPT)
    model.generation_config.disable_compile = True
    words = {
        "max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0,
        "attention_mask": torch.ones_like(prompt),
        **({"cache_implementation": "static"} if cache == "static" else {}),
    }  # fmt: skip
    with torch.no_grad():
        expected = model.generate(prompt, **words)
        model.forward = torch.compile(model.forward, backend="polysci")
        for _ in range(2):
            assert torch.equal(model.generate(prompt, **words), expected)
    assert len(expected[0]) == len(PROMPT[0]) + count


# Prompts of two lengths, padded at their left end: the second one is shorter.
PADDED = [[3, 1, 4, 1, 5, 9, 2], [0, 0, 0, 2, 7, 1, 8]]
WAYS = [("padded", "static", 12), ("padded", "dynamic", 2), ("beams", "static", 12),
        ("beams", "dynamic", 2), ("padded beams", "static", 8)]  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(("way", "cache", "count"), WAYS)
def test_batches_and_beams_are_those_of_eager(
    kind: str, way: str, cache: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left padding shifts positions and hides tokens; beams reorder the cache in each step."""
    model, compiled = model_of(kind), []

    def compile_noted(*arguments: Any, **words: Any) -> Any:
        compiled.append(compile_network(*arguments, **words))
        return compiled[-1]

    monkeypatch.setattr(variants, "compile_network", compile_noted)
    prompt = torch.tensor(PADDED if "padded" in way else PROMPT)
    model.generation_config.disable_compile = True
    beams = 2 if "beams" in way else 1
    words = {
        "max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0,
        "attention_mask": (prompt != 0).long(), "num_beams": beams, "num_return_sequences": beams,
        "return_dict_in_generate": True, "output_scores": True,
        **({"cache_implementation": "static"} if cache == "static" else {}),
    }  # fmt: skip
    with torch.no_grad():
        expected = model.generate(prompt, **words)
        model.forward = torch.compile(model.forward, backend="polysci")
        found = model.generate(prompt, **words)
    assert len(compiled) >= 2  # for the prompt, and for a step
    assert torch.equal(found.sequences, expected.sequences)
    for own, wanted in zip(found.scores, expected.scores, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-4)
