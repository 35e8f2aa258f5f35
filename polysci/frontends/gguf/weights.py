"""The weights of a decoder by their names in GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.gguf.file import BF16, GgufFile, GgufTensor
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import BLOCK_TYPES, from_bf16
from polysci.text.tables import shorten

TABLE = "token_embd.weight"
IGNORED = (".attn_rot_embd.weight", ".rotary_emb.inv_freq")  # ends of names of old files
_LISTED = 200  # letters of names that an error lists


@dataclass(slots=True)
class DecoderWeights:
    """The tensors of a file; ``read``: those that something has read."""

    file: GgufFile
    read: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def matrix(
        self, name: str, shape: tuple[int | None, int], order: Array | None = None
    ) -> tuple[str, Array]:
        """Return the type of weights and their array, (N, K), as ``GgufTensor`` has them.

        ``order`` is that of rows. Raises SpecError for a tensor that is not there, or has not the
        shape, UnsupportedError for a format that no product reads.
        """
        tensor = self._tensor(name, shape)
        key = (name, None if order is None else order.tobytes())
        rows = slice(None) if order is None else order
        return tensor.weights, self._shared(key, lambda: tensor.array[rows])

    def vector(self, name: str, size: int) -> Array:
        """Return a tensor of one axis as f32. Raises as ``matrix`` does."""
        return self._tensor(name, (size,)).values()

    def table(self, width: int) -> dict[str, Array]:
        """Return the table of tokens as arrays of rows: ``values``, or the fields of its blocks.

        Those are ``scale``, perhaps ``zero``, and ``numbers`` or ``nibbles``.
        """
        weights, array = self.matrix(TABLE, (None, width))
        if weights not in BLOCK_TYPES:
            return {"values": from_bf16(array) if weights == BF16 else array}
        blocks = array.view(BLOCK_TYPES[weights].numpy).reshape(len(array), -1)
        parts = ((name, partial(np.ascontiguousarray, blocks[name]))
                 for name in blocks.dtype.names or ())  # fmt: skip
        return {name: self._shared((TABLE, name), make) for name, make in parts}

    def check_all_read(self) -> None:
        """Raise UnsupportedError where the file has tensors that nothing read."""
        others = [
            name for name in self.file.tensors
            if name not in self.read and not name.endswith(IGNORED)
        ]  # fmt: skip
        if others:
            raise UnsupportedError(
                f"{self.file.path!r:.200}: tensors that this architecture does not have here: "
                f"{shorten(', '.join(others), _LISTED)}"
            )

    def _tensor(self, name: str, shape: tuple[int | None, ...]) -> GgufTensor:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise SpecError(f"{self.file.path!r:.200}: it has no tensor {name!r:.80}")
        self.read.add(name)
        pairs = zip(tensor.shape, shape, strict=False)
        if len(tensor.shape) != len(shape) or any(want not in (None, own) for own, want in pairs):
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise SpecError(
                f"{self.file.path!r:.200}: tensor {name!r:.80} has shape {list(tensor.shape)}: "
                f"expected [{wanted}]"
            )
        return tensor

    def _shared(self, key: object, make: Callable[[], Array]) -> Array:
        """Return an array of the file, which graphs share as long as one of them holds it."""
        array = self.file.made.get(key)
        if array is None:
            array = self.file.made[key] = make()
        return array
