"""Transformers of the package `transformers` as ONNX models, with random weights of fixed seeds.

Each is exported by PyTorch at the sizes that its users run: encoders of text, images and speech,
and language models in both their parts, which read a prompt (prefill) and then append a token to
its cached keys and values (decode). Needs PyTorch, transformers, timm and onnxscript.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

Case = tuple[Any, tuple[Any, ...]]  # a module and its example inputs
PAST = 127  # cached tokens of a decode step


def export(make: Callable[[], Case]) -> onnx.ModelProto:
    """Return the ONNX model of a module that ``make`` makes."""
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    module, inputs = make()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), inputs, dynamo=True, verbose=False)
        program.save(str(Path(folder) / "model.onnx"))
        return onnx.load(Path(folder) / "model.onnx")


def wrap(model: Any, run: Callable[..., Any]) -> Any:
    """Return a module of plain tensors, whose forward is ``run(model, *tensors)``."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            return run(self.model, *tensors)

    return Wrapped()


def tokens(count: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(0, vocabulary, (1, count))


def encoder(layers: int, width: int, heads: int, count: int = 128) -> Case:
    """BERT's encoder of ``count`` tokens."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    return wrap(model, lambda it, ids: it(ids)[0]), (tokens(count, config.vocab_size),)


def causal(model: Any, config: Any, count: int, past: int, heads: int, head: int) -> Case:
    """A causal language model that reads ``count`` tokens behind ``past`` cached ones."""
    import torch
    from transformers import DynamicCache

    def run(own: Any, ids: Any, *caches: Any) -> Any:
        layers = tuple(zip(caches[::2], caches[1::2], strict=True))
        cache = DynamicCache.from_legacy_cache(layers) if past else None
        result = own(ids, past_key_values=cache, use_cache=bool(past))
        if not past:
            return result.logits
        return result.logits, *(it for layer in result.past_key_values.to_legacy_cache()
                                for it in layer)  # fmt: skip

    shape = (1, heads, past, head)
    caches = [torch.randn(shape) for _ in range(2 * config.num_hidden_layers if past else 0)]
    return wrap(model, run), (tokens(count, config.vocab_size), *caches)


def gpt2(count: int, past: int = 0) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config()
    return causal(GPT2LMHeadModel(config), config, count, past, 12, 64)


def llama(count: int, past: int = 0) -> Case:
    """A small Llama: 8 layers of 1024, 16 heads that share 4 pairs of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    return causal(LlamaForCausalLM(config), config, count, past, 4, 64)


def picture(name: str) -> Case:
    import timm
    import torch

    return timm.create_model(name), (torch.randn(1, 3, 224, 224),)


def whisper() -> Case:
    import torch
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536,
        decoder_layers=4, decoder_attention_heads=6, decoder_ffn_dim=1536,
    )  # fmt: skip
    model = WhisperModel(config).encoder
    return wrap(model, lambda it, sound: it(sound)[0]), (torch.randn(1, 80, 3000),)


CASES: Mapping[str, Callable[[], Case]] = MappingProxyType(
    {
        "bert_base_128": lambda: encoder(12, 768, 12),
        "minilm_128": lambda: encoder(6, 384, 12),
        "gpt2_prefill_128": lambda: gpt2(128),
        "gpt2_decode": lambda: gpt2(1, PAST),
        "llama_prefill_128": lambda: llama(128),
        "llama_decode": lambda: llama(1, PAST),
        "vit_s": lambda: picture("vit_small_patch16_224"),
        "convnext_t": lambda: picture("convnext_tiny"),
        "swin_t": lambda: picture("swin_tiny_patch4_window7_224"),
        "whisper_tiny_encoder": whisper,
    }
)
MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {name: (lambda make=make: export(make)) for name, make in CASES.items()}  # type: ignore[misc]
)
