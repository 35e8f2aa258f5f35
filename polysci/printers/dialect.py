"""C in the languages of devices: functions and headers as each language spells them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from polysci.errors import UnsupportedError

Rules = tuple[tuple[str, str], ...]

_COMMENT: Final = r"/\*.*?\*/"
_RULES: Rules = (  # of every device: no compiler is fenced, no pointer names a function
    (r"^ *(#pragma omp|#include) .*\n", ""),
    (r'(?:__asm__ volatile\(""[^)]*\)|PS_RELOAD\(\));', ";"),
    (r"typedef void \(\*ps_activation\)\([^)]*\);", "typedef int ps_activation;"),
    (r"\bactivation\(x, count\)", "PS_CALL(activation, x, count)"),
    (r"^([ \t]+)static const\b", r"\1const"),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A language of devices: what it spells otherwise than C, and loop IR's names of its own.

    Headers written in it end in ``_name``, files in ``suffix``. ``rules`` are patterns in C and
    what stands for them; ``reserved`` are names in C that are words of the language.
    """

    name: str
    title: str
    suffix: str
    reserved: str
    rules: Rules

    def translate(self, text: str) -> str:
        """Return C in this language. Words in comments stay as they are."""
        text = re.sub(
            rf"({_COMMENT})|\b({self.reserved})\b",
            lambda word: word[1] or f"{word[2]}_", text, flags=re.DOTALL,
        )  # fmt: skip
        for pattern, replacement in (*_RULES, *self.rules):
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        return text


OPENCL: Final = Dialect(
    "opencl", "OpenCL", ".cl",
    "local|global|private|constant|kernel|half",
    (
        (r"^static const\b", "__constant"),
        # Vectors are read at multiples of their size.
        (r"^( +PS_LOCAL \w+ \w+\[[^;]*\]);", r"\1 __attribute__((aligned(16)));"),
        # A pointer to numbers is to the device's memory, unless a header of OpenCL's own says
        # otherwise: sums and vectors of a work-item are arrays of other types. Where a text has
        # several choices of headers, names end in theirs.
        (r"\b(ps_a|ps_b|ps_x|ps_y|ps_bias|ps_ranked|float|double|void|char|u?int\d+_t|polysci_scales)"
         r"(_of_\w+)? \*", r"__global \1\2 *"),
    ),
)  # fmt: skip
CUDA: Final = Dialect(
    "cuda", "CUDA", ".cu",
    "and|bool|catch|class|delete|friend|new|not|operator|or|private|public|template|this|throw|try",
    (
        (r"^static const\b", "static __device__ const"),
        (r"^static\b(?! (const|inline|__device__)\b)", "static __device__"),
        (r"__kernel\b", 'extern "C" __global__'),
        (r"\bget_global_id\(0\)", "(int64_t)blockIdx.x * blockDim.x + threadIdx.x"),
        (r"\bget_group_id\(0\)", "blockIdx.x"),
        (r"\bget_local_id\(0\)", "threadIdx.x"),
        # An array, not a pointer to one.
        (r"^( +)PS_LOCAL (\w+ \w+\[)", r"\1alignas(16) __shared__ \2"),
        (r"\brestrict\b", "__restrict__"),
        (r"\((?:const )?(ps_\w+)\)\{", r"\1{"),  # a record without a name
        # C converts addresses of anything to what they are used as.
        (r"\((const )?void \*\)", "(ps_any)"),
        (r"\b(const )?void \*(__restrict__ )?(?=packed|workspace|m_(in|out)\d|(in|out)\[)",
         "ps_any "),
    ),
)  # fmt: skip
DIALECTS: Mapping[str, Dialect] = MappingProxyType({row.name: row for row in (OPENCL, CUDA)})


def dialect_of(language: str) -> Dialect:
    """Return the row of a language. Raises UnsupportedError where there is none."""
    if language not in DIALECTS:
        raise UnsupportedError(f"no printer of {language}; known: c, {', '.join(DIALECTS)}")
    return DIALECTS[language]
