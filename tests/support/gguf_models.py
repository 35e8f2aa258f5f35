"""Small decoders of random weights as GGUF files, and the same in NumPy and float64."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, SHARED, SIZE, HIDDEN = 256, 4, 2, 16, 512
VOCABULARY, LAYERS, CONTEXT, BASE, EPSILON = 40, 2, 24, 500.0, 1e-5


@dataclass(frozen=True)
class GgufModel:
    """A decoder; ``formats`` are those of its tensors by a part of their names, F32 where none is.

    ``metadata`` replaces that of its architecture, None leaves a key out. ``without`` are tensors
    that the file lacks, ``more`` others that it has.
    """

    architecture: str = "llama"
    formats: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors, N x K."""
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, WIDTH)}
        for layer in range(LAYERS):
            blk = f"blk.{layer}"
            own: dict[str, tuple[int, ...]] = {
                "attn_norm": (WIDTH,), "attn_q": (HEADS * SIZE, WIDTH),
                "attn_k": (SHARED * SIZE, WIDTH), "attn_v": (SHARED * SIZE, WIDTH),
                "attn_output": (WIDTH, HEADS * SIZE), "ffn_norm": (WIDTH,),
                "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN),
            }  # fmt: skip
            if self.architecture == "qwen3":
                own |= {"attn_q_norm": (SIZE,), "attn_k_norm": (SIZE,)}
            shapes |= {f"{blk}.{name}.weight": shape for name, shape in own.items()}
            if self.architecture == "qwen2":
                parts = (("q", HEADS), ("k", SHARED), ("v", SHARED))
                shapes |= {f"{blk}.attn_{part}.bias": (heads * SIZE,) for part, heads in parts}
        shapes |= {"output_norm.weight": (WIDTH,), "output.weight": (VOCABULARY, WIDTH)}
        shapes |= self.more
        return {name: shape for name, shape in shapes.items() if name not in self.without}

    def keys(self) -> dict[str, Any]:
        """The metadata of the architecture."""
        keys = {
            "block_count": LAYERS, "context_length": CONTEXT, "embedding_length": WIDTH,
            "feed_forward_length": HIDDEN, "attention.head_count": HEADS,
            "attention.head_count_kv": SHARED, "attention.key_length": SIZE,
            "attention.value_length": SIZE, "attention.layer_norm_rms_epsilon": EPSILON,
            "rope.freq_base": BASE, "rope.dimension_count": SIZE, **self.metadata,
        }  # fmt: skip
        return {key: value for key, value in keys.items() if value is not None}

    def write(self, path: Path) -> Path:
        """Write the file."""
        import gguf

        random = np.random.default_rng(7)
        writer = gguf.GGUFWriter(path, self.architecture)
        kinds: dict[type, Any] = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
            str: writer.add_string, list: writer.add_array,
        }  # fmt: skip
        for key, value in self.keys().items():
            kinds[type(value)](f"{self.architecture}.{key}", value)
        for name, shape in self.shapes().items():
            values = random.standard_normal(shape).astype(np.float32)
            values = 1 + values / 8 if "norm" in name else values / 4
            if name == "rope_freqs.weight":
                values = 1 + random.random(shape, np.float32)
            kind = gguf.GGMLQuantizationType[self._format(name)]
            packed = _quantise(gguf, values, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _format(self, name: str) -> str:
        own = (kind for part, kind in self.formats.items() if part in name)
        return "F32" if "norm" in name or "bias" in name or "freqs" in name else next(own, "F32")


def _quantise(gguf: Any, values: np.ndarray, kind: Any) -> np.ndarray:
    """Quantise values; where the package cannot, its bytes are random, with moderate scales."""
    if kind.name == "F16":
        return values.astype(np.float16)
    if not kind.name.endswith("_K") and kind.name[0] != "I":
        return np.asarray(gguf.quants.quantize(values, kind))
    numbers, size = gguf.constants.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(values.size)
    data = random.integers(0, 256, (values.size // numbers, size)).astype(np.uint8)
    # f16 scales of about 2^-12, at the end of some and at the beginning of others
    heads = (random.random((len(data), 2)) * 2.0**-12).astype(np.float16)
    if kind.name in ("Q3_K", "Q6_K", "IQ4_XS"):
        place = slice(0, 2) if kind.name == "IQ4_XS" else slice(-2, None)
        data[:, place] = heads[:, :1].view(np.uint8)
    else:
        heads[:, 1] *= np.float16(4)
        place = slice(-4, None) if kind.name == "Q2_K" else slice(0, 4)
        data[:, place] = heads.view(np.uint8)
    return data.reshape(len(values), -1)


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """The logits behind each of the tokens of a file, in float64: (tokens, vocabulary)."""
    import gguf

    reader = gguf.GGUFReader(path)
    fields = {key: own.contents() for key, own in reader.fields.items()}
    name = fields["general.architecture"]
    key = {own.removeprefix(f"{name}."): value for own, value in fields.items()}
    w = {
        part.name: gguf.quants.dequantize(part.data, part.tensor_type).astype(np.float64)
        for part in reader.tensors
    }
    heads, shared = key["attention.head_count"], key["attention.head_count_kv"]
    size, turned = key["attention.key_length"], key["rope.dimension_count"]
    steps = np.arange(turned // 2)
    freqs = key["rope.freq_base"] ** (-2 * steps / turned) / w.get("rope_freqs.weight", 1)
    angles = np.arange(len(tokens))[:, None] * freqs / key.get("rope.scaling.factor", 1.0)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    pairs = (2 * steps, 2 * steps + 1) if name == "llama" else (steps, steps + turned // 2)

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        mean = (x * x).mean(-1, keepdims=True) + key["attention.layer_norm_rms_epsilon"]
        return np.asarray(x / np.sqrt(mean) * gain)

    def turn(x: np.ndarray) -> np.ndarray:
        y, (a, b) = x.copy(), (x[..., own] for own in pairs)
        y[..., pairs[0]], y[..., pairs[1]] = a * cos - b * sin, a * sin + b * cos
        return y

    def product(x: np.ndarray, part: str) -> np.ndarray:
        return np.asarray(x @ w[f"{part}.weight"].T + w.get(f"{part}.bias", 0))

    x, hidden = w["token_embd.weight"][tokens], np.triu(np.full((len(tokens),) * 2, -np.inf), 1)
    for layer in range(key["block_count"]):
        blk = f"blk.{layer}"
        y = norm(x, w[f"{blk}.attn_norm.weight"])
        q, k, v = (
            product(y, f"{blk}.attn_{part}").reshape(len(tokens), count, -1)
            for part, count in (("q", heads), ("k", shared), ("v", shared))
        )
        if name == "qwen3":
            q, k = (norm(own, w[f"{blk}.attn_{part}_norm.weight"])
                    for own, part in ((q, "q"), (k, "k")))  # fmt: skip
        q, k = turn(q), turn(k)
        k, v = (np.repeat(own, heads // shared, 1) for own in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(size) + hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + product(np.einsum("hts,shd->thd", shares, v).reshape(len(tokens), -1),
                        f"{blk}.attn_output")  # fmt: skip
        y = norm(x, w[f"{blk}.ffn_norm.weight"])
        gate = product(y, f"{blk}.ffn_gate")
        up = gate / (1 + np.exp(-gate)) * product(y, f"{blk}.ffn_up")
        x = x + product(up, f"{blk}.ffn_down")
    tied = "output.weight" not in w
    return product(norm(x, w["output_norm.weight"]), "token_embd" if tied else "output")
