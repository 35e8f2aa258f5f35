"""The floating-point modes of this process's threads, read and set by a small C library."""

from functools import cache
from typing import Any

from polysci.runtime.backends import BACKENDS

_DECLARATIONS = """\
void fp_modes(int threads, unsigned *modes);
void fp_flush(int on);
"""
_CODE = f"""\
#include <stdint.h>
{_DECLARATIONS}
#if defined(__SSE__)
static unsigned mode(void) {{ return __builtin_ia32_stmxcsr() & 0xffc0u; }}
static void set_mode(unsigned mode) {{ __builtin_ia32_ldmxcsr(mode); }}
enum {{ FLUSH = 0x8040 }};
#elif defined(__aarch64__)
static unsigned mode(void)
{{
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return (unsigned)value;
}}
static void set_mode(unsigned mode) {{ __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode)); }}
enum {{ FLUSH = 1 << 24 }};
#endif
void fp_modes(int threads, unsigned *modes)
{{
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread)
        modes[thread] = mode();
}}
void fp_flush(int on) {{ set_mode(on ? mode() | FLUSH : mode() & ~(unsigned)FLUSH); }}
"""


@cache
def _library() -> Any:
    return BACKENDS["host"].load(
        BACKENDS["host"].build(_CODE, symbols=["fp_modes", "fp_flush"]), _DECLARATIONS
    )


def modes(threads: int = 1) -> list[int]:
    """The control bits of each thread of an OpenMP team, the caller's first."""
    values = _library().ffi.new("unsigned[]", threads)
    _library().lib.fp_modes(threads, values)
    return list(values)


def flush(on: bool) -> None:
    """Whether denormals count as 0 in this thread."""
    _library().lib.fp_flush(int(on))
