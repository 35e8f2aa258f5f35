"""Decoders of GGUF files beside NumPy's float64, token by token, and files that are refused."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.cli import main as command
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.frontends.gguf import decoder
from polysci.frontends.gguf.decoder import LOGITS, read_decoder
from polysci.frontends.onnx import reference
from polysci.graph.graph import NARROW_MATMUL
from polysci.graph.passes.table import simplify
from tests.support.exported import run as run_words
from tests.support.gguf_models import CONTEXT, LAYERS, SIZE, VOCABULARY, GgufModel, logits

pytest.importorskip("gguf")
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
MIXED = {
    "attn_output": "F16", "attn_v": "Q6_K", "attn_q": "Q3_K", "output": "Q6_K", "ffn_up": "Q5_K",
    "ffn_gate": "Q2_K", "ffn_down": "IQ4_XS", "": "Q4_K",
}  # fmt: skip
MODELS = {
    "llama f32": GgufModel(),
    "llama q4_0": GgufModel(formats={"": "Q4_0"}),
    "llama mixed": GgufModel(formats=MIXED),
    "llama scaled": GgufModel(
        formats={"token_embd": "F16", "attn_q": "BF16", "": "Q8_0"},
        metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0,
                  "rope.dimension_count": 8},
        more={"rope_freqs.weight": (4,)},
    ),
    "qwen2": GgufModel("qwen2", {"": "Q5_0"}, without=("output.weight",)),
    "qwen3": GgufModel("qwen3", {"token_embd": "BF16", "ffn": "Q4_1", "": "Q5_1"}),
}  # fmt: skip


def run(graph: Any, state: Mapping[str, np.ndarray], tokens: list[int]) -> Any:
    """Logits of a run in float64, and the state that it leaves."""
    made = reference.run(graph, {**state, "tokens": np.array(tokens)}, "float64")
    return made[LOGITS], {name: made[new] for new, name in graph.in_place.items()}


@pytest.mark.parametrize("name", MODELS)
def test_prompts_and_single_tokens(name: str, tmp_path: Path) -> None:
    """A prompt of five tokens at a time, then one by one; all blocks stay narrow."""
    path = MODELS[name].write(tmp_path / "m.gguf")
    expected = logits(path, TEXT)
    graphs = {count: simplify(read_decoder(path, {"tokens": count}, None)) for count in (5, 1)}
    state = dict(graphs[5].state)
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 8)):
        scores, state = run(graphs[last - first], state, TEXT[first:last])
        np.testing.assert_allclose(scores, expected[last - 1], rtol=0, atol=1e-4)
    assert int(state[graphs[1].counter]) == len(TEXT)
    products = [node.op for node in graphs[1].nodes if node.name.startswith("blk")]
    assert len(products) == 7 * LAYERS
    narrow = {"llama f32": 0, "llama mixed": 6}.get(name, 7)  # f16 becomes f32
    assert products.count(NARROW_MATMUL) == narrow * LAYERS


def test_graphs_of_several_sizes_share_their_weights(tmp_path: Path) -> None:
    path = MODELS["llama q4_0"].write(tmp_path / "m.gguf")
    first, second = (read_decoder(path, {"tokens": count}, None) for count in (1, 2))
    large = [{id(own) for own in graph.constants.values() if own.nbytes > 1 << 12}
             for graph in (first, second)]  # fmt: skip
    assert large[0] and large[0] == large[1]


def test_generation(tmp_path: Path) -> None:
    """What is compiled computes the same, with prompts in parts; sampling is by shares."""
    path = MODELS["llama q4_0"].write(tmp_path / "m.gguf")
    net = polysci.compile_sizes(path, {"tokens": [1, 3], "context": 16}, "estimate")
    assert net.state["keys.0"].shape == (2, 16, SIZE)
    writer = net.generation()
    assert writer.capacity == 16
    expected = logits(path, TEXT)
    np.testing.assert_allclose(writer.prefill(TEXT[:7]), expected[6], atol=1e-3)
    np.testing.assert_allclose(writer.decode(TEXT[7]), expected[7], atol=1e-3)
    writer.reset()
    tokens = TEXT[:4]
    for token in writer.generate(tokens, 4):
        assert token == logits(path, tokens)[-1].argmax()
        tokens = [*tokens, token]
    writer.reset()
    assert writer.next(TEXT, temperature=0.5, top_k=1, uniform=0.9) == expected[-1].argmax()


def run_in_parts(path: Path, parts: Sequence[int], graphs: Mapping[int, Any]) -> None:
    """Run graphs on a text in parts, and compare the logits behind each."""
    text = [(7 * at + 3) % VOCABULARY for at in range(sum(parts))]
    state, first = dict(graphs[parts[0]].state), 0
    for count in parts:
        scores, state = run(graphs[count], state, text[first : first + count])
        first += count
        np.testing.assert_allclose(scores, logits(path, text[:first])[-1], rtol=0, atol=1e-4)


def test_runs_read_no_more_state_than_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer has sides for 4, 8, 16 and 24 rows; a text goes through all of them."""
    monkeypatch.setattr(decoder, "LEAST_READ", 4)
    path = MODELS["llama q4_0"].write(tmp_path / "m.gguf")
    graphs = {count: read_decoder(path, {"tokens": count}, None) for count in (3, 1)}
    for graph in graphs.values():
        assert [node.op for node in graph.nodes].count("if") == 3 * LAYERS
    run_in_parts(path, [3, 1, 1, 3, 1, 1, 3, 3, 1, 3, 3, 1], graphs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_sides(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "LEAST_READ", 4)
    path = MODELS["llama q4_0"].write(tmp_path / "m.gguf")
    writer = polysci.compile_sizes(path, {"tokens": [1, 3]}, "estimate", threads).generation()
    text = [(7 * at + 3) % VOCABULARY for at in range(CONTEXT)]
    expected = logits(path, text)
    for first, last in pairwise((0, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 23, 24)):
        scores = writer.prefill(text[first:last])
        np.testing.assert_allclose(scores, expected[last - 1], rtol=0, atol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_compiled_decoders(name: str, tmp_path: Path) -> None:
    path = MODELS[name].write(tmp_path / "m.gguf")
    writer = polysci.compile_sizes(path, {"tokens": [1, 5]}, "estimate").generation()
    assert writer.capacity == CONTEXT
    expected, scores = logits(path, TEXT), [writer.prefill(TEXT[:6])]
    scores += [writer.decode(token) for token in TEXT[6:]]
    np.testing.assert_allclose(scores, expected[5:], rtol=0, atol=1e-3)
    assert scores[0].shape == (VOCABULARY,)


@pytest.mark.exhaustive
def test_a_library_of_several_sizes(tmp_path: Path) -> None:
    """The command line writes it, and its self-test passes."""
    path = MODELS["llama mixed"].write(tmp_path / "m.gguf")
    words = ["--dim", "tokens=1,3", "--dim", "context=8", "--level", "estimate", "--weights", "a8"]
    assert command(["compile", str(path), *words, "-o", str(tmp_path / "c")]) == 0
    header = (tmp_path / "c" / "m.h").read_text(encoding="utf-8")
    assert "int64_t m_next(m_context *context, const int64_t *tokens" in header
    checked = run_words("make", "check", "CFLAGS=-O1", cwd=tmp_path / "c")
    assert checked.returncode == 0 and " 0 failed" in checked.stdout, checked.stdout
    assert command(["explain", str(path), "--dim", "tokens=2"]) == 0


LLAMA = "'.*m.gguf': "
REFUSED: dict[str, tuple[GgufModel, type[PolysciError], str]] = {
    "architecture": (
        GgufModel("gptj"), UnsupportedError,
        f"{LLAMA}architecture 'gptj': expected one of llama, qwen2, qwen3",
    ),
    "format": (
        GgufModel(formats={"blk.1.ffn_up": "TQ2_0"}), UnsupportedError,
        "tensor 'blk.1.ffn_up.weight': TQ2_0 is none of F32, F16, BF16, Q4_0, Q4_1",
    ),
    "experts": (
        GgufModel(metadata={"expert_count": 8}), UnsupportedError,
        f"{LLAMA}llama.expert_count is 8: expected 0",
    ),
    "scaling": (
        GgufModel(metadata={"rope.scaling.type": "yarn"}), UnsupportedError,
        "llama.rope.scaling.type is 'yarn': expected '' or 'none' or 'linear'",
    ),
    "missing": (
        GgufModel(without=("blk.1.ffn_up.weight",)), SpecError,
        f"{LLAMA}it has no tensor 'blk.1.ffn_up.weight'",
    ),
    "more": (
        GgufModel(more={"blk.0.post_norm.weight": (3,)}), UnsupportedError,
        f"{LLAMA}tensors that this architecture does not have here: blk.0.post_norm.weight",
    ),
    "shape": (
        GgufModel(metadata={"attention.head_count_kv": 4}), SpecError,
        r"tensor 'blk.0.attn_k.weight' has shape \[32, 256\]: expected \[64, 256\]",
    ),
    "no key": (
        GgufModel(metadata={"block_count": None}), SpecError,
        f"{LLAMA}no llama.block_count in its metadata",
    ),
    "several": (
        GgufModel(metadata={"attention.head_count_kv": [2, 1]}), UnsupportedError,
        r"attention.head_count_kv is \[2, 1\]: expected a whole number from 1",
    ),
    "window": (
        GgufModel(metadata={"attention.sliding_window": 8}), UnsupportedError,
        "a sliding window of 8 tokens: bind context to as many at most, as in --dim context=8",
    ),
    "groups": (
        GgufModel(metadata={"attention.head_count_kv": 3}), UnsupportedError,
        "4 heads, 3 of keys, 16 elements each",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(name: str, tmp_path: Path) -> None:
    model, kind, reason = REFUSED[name]
    with pytest.raises(kind, match=reason) as error:
        read_decoder(model.write(tmp_path / "m.gguf"), None, None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dims", "values", "reason"),
    [
        ({"token": 1}, {}, "dim 'token': a decoder has tokens and context; did you mean 'tokens'"),
        ({"tokens": 9, "context": 8}, {}, "dims: 9 tokens at a time of 8: expected no more"),
        ({"context": 25}, {}, "of 25: expected no more tokens than context, and at most 24"),
        ({}, {"tokens": 1}, "value 'tokens': a decoder has no inputs but tokens"),
    ],
)
def test_sizes_that_are_refused(
    dims: dict[str, int], values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = MODELS["llama f32"].write(tmp_path / "m.gguf")
    with pytest.raises(SpecError, match=reason):
        read_decoder(path, dims, values)
