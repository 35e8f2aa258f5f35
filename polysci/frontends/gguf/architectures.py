"""The decoders that metadata of GGUF files describes: their extents, and how positions turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.gguf.file import GgufFile
from polysci.text.names import suggest

_REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class DecoderKind:
    """Differences between the decoders of one name and others.

    ``interleaved``: positions turn pairs of neighbours of a head, else one element of either half.
    ``head_norms``: each head of queries and keys is normalised.
    """

    interleaved: bool = False
    head_norms: bool = False


ARCHITECTURES: Final[Mapping[str, DecoderKind]] = MappingProxyType(
    {
        "llama": DecoderKind(interleaved=True),
        "qwen2": DecoderKind(),
        "qwen3": DecoderKind(head_norms=True),
    }
)
# Metadata that would change what is computed, and the values with which it does not.
NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType(
    {
        "expert_count": (0,),
        "attention.causal": (True,),
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "attn_logit_softcapping": (0,),
        "final_logit_softcapping": (0,),
        "embedding_scale": (0, 1),
        "residual_scale": (0, 1),
        "logit_scale": (0, 1),
        "use_parallel_residual": (False,),
        "rope.scaling.type": ("", "none", "linear"),
        "rope.scaling.attn_factor": (0, 1),
        "pooling_type": (0,),
    }
)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The extents of a decoder, and what positions do to queries and keys.

    ``heads`` of queries share ``kv_heads`` of keys and values, whose elements are ``head_size``.
    The first ``rope_size`` elements of a head turn; angles are positions divided by
    ``rope_factor``, times powers of ``rope_base``.
    """

    kind: DecoderKind
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    epsilon: float
    context_length: int
    attention_scale: float
    rope_size: int
    rope_base: float
    rope_factor: float
    window: int

    @classmethod
    def of(cls, file: GgufFile) -> Decoder:
        """Return the decoder of a file. Raises UnsupportedError for one of another architecture."""
        name = file.metadata.get("general.architecture", "")
        if name not in ARCHITECTURES:
            raise UnsupportedError(
                f"{file.path!r:.200}: architecture {name!r:.80}: expected one of "
                f"{', '.join(ARCHITECTURES)}{suggest(str(name), ARCHITECTURES)}"
            )
        read = _Metadata(file, str(name))
        read.check()
        width, heads = read.whole("embedding_length"), read.whole("attention.head_count")
        size = read.whole("attention.key_length", width // heads)
        factor = read.real("rope.scaling.factor", read.real("rope.scale_linear", 1.0))
        scaled = read.get("rope.scaling.type", "linear") == "linear"
        own = cls(
            kind=ARCHITECTURES[name],
            layers=read.whole("block_count"),
            width=width,
            heads=heads,
            kv_heads=read.whole("attention.head_count_kv", heads),
            head_size=size,
            value_size=read.whole("attention.value_length", width // heads),
            epsilon=read.real("attention.layer_norm_rms_epsilon"),
            context_length=read.whole("context_length"),
            attention_scale=read.real("attention.scale", 0.0) or size**-0.5,
            rope_size=read.whole("rope.dimension_count", size),
            rope_base=read.real("rope.freq_base", 10000.0),
            rope_factor=factor if scaled and factor else 1.0,
            window=read.whole("attention.sliding_window", 0, least=0),
        )
        if heads % own.kv_heads or own.rope_size % 2 or own.rope_size > size:
            raise UnsupportedError(
                f"{file.path!r:.200}: {heads} heads, {own.kv_heads} of keys, {size} elements each, "
                f"{own.rope_size} of them turned: expected whole groups, and an even number"
            )
        return own


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The metadata of an architecture."""

    file: GgufFile
    architecture: str

    def get(self, name: str, default: object = _REQUIRED) -> Any:
        key = f"{self.architecture}.{name}"
        value = self.file.metadata.get(key, default)
        if value is _REQUIRED:
            raise SpecError(f"{self.file.path!r:.200}: no {key} in its metadata")
        return value

    def whole(self, name: str, default: object = _REQUIRED, least: int = 1) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or not least <= value < 1 << 31:
            raise self._fault(name, value, f"a whole number from {least}")
        return value

    def real(self, name: str, default: object = _REQUIRED) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self._fault(name, value, "a number from 0")
        return float(value)

    def check(self) -> None:
        """Raise UnsupportedError for metadata that asks for what decoders here do not compute."""
        for name, values in NEUTRAL.items():
            if (value := self.get(name, values[0])) not in values:
                raise self._fault(name, value, " or ".join(repr(own) for own in values))
        if (parts := self.file.metadata.get("split.count", 0)) not in (0, 1):
            raise UnsupportedError(
                f"{self.file.path!r:.200}: one of {parts} files; join them first, with "
                "llama-gguf-split --merge"
            )

    def _fault(self, name: str, value: object, expected: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.file.path!r:.200}: {self.architecture}.{name} is {value!r:.80}: expected "
            f"{expected}"
        )
