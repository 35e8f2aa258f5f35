"""GGUF files of decoders with random weights, as language_models.py reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = ("Q4_0", "Q8_0")
BASE, EPSILON = 10000.0, 1e-5


@dataclass(frozen=True, slots=True)
class DecoderSize:
    """The extents of a Llama."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


SIZES = {
    "small": DecoderSize(4, 512, 8, 2, 1536, 4096),
    "1b": DecoderSize(16, 2048, 32, 8, 8192, 32000),
}


def write_decoder(path: Path, size: DecoderSize, kind: str, context: int) -> None:
    """Write a Llama whose products keep the size of what they read; weights are of one format."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(size.layers)
    writer.add_context_length(context)
    writer.add_embedding_length(size.width)
    writer.add_feed_forward_length(size.hidden)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(size.head)
    writer.add_rope_freq_base(BASE)
    writer.add_vocab_size(size.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(0)
    for name, shape in _shapes(size).items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        blocks = _blocks(random, shape, kind)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(size: DecoderSize) -> dict[str, tuple[int, ...]]:
    shared = size.kv_heads * size.head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (size.width,), "attn_q": (size.width, size.width),
        "attn_k": (shared, size.width), "attn_v": (shared, size.width),
        "attn_output": (size.width, size.width), "ffn_norm": (size.width,),
        "ffn_gate": (size.hidden, size.width), "ffn_up": (size.hidden, size.width),
        "ffn_down": (size.width, size.hidden),
    }  # fmt: skip
    return {
        "token_embd.weight": (size.vocabulary, size.width),
        **{
            f"blk.{at}.{name}.weight": shape
            for at in range(size.layers) for name, shape in layer.items()
        },
        "output_norm.weight": (size.width,),
        "output.weight": (size.vocabulary, size.width),
    }  # fmt: skip


def _blocks(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> Any:
    """Return random blocks, of which rows have length 1."""
    rows, columns = shape
    count = columns // 32
    if kind == "Q4_0":
        low, high = random.integers(1, 16, (2, rows, count, 16), np.uint8)  # 8 is zero
        packed, spread = low | high << 4, 4.32
    else:
        packed, spread = random.integers(0, 256, (rows, count, 32), np.uint8), 73.9
    scale = np.full((rows, count, 1), columns**-0.5 / spread, np.float16)
    scale *= random.uniform(0.5, 1.5, scale.shape).astype(np.float16)
    return np.concatenate((scale.view(np.uint8), packed), -1).reshape(rows, -1)
