/* What every other header here uses. */
#include <stdint.h>
#include <string.h>

#define PS_KERNEL PS_TARGET __attribute__((noinline))
#define PS_SCALAR static inline __attribute__((unused))
#if defined(__clang__)
#define PS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PS_UNROLL _Pragma("GCC unroll 64")
#endif

/* Integers, for any caller. */
PS_SCALAR int64_t ps_least(int64_t x, int64_t y) { return x < y ? x : y; }
PS_SCALAR int64_t ps_most(int64_t x, int64_t y) { return x > y ? x : y; }
PS_SCALAR int64_t ps_floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && x < 0); }
/* ceil(x / y) for y > 0, and 0 for negative x. */
PS_SCALAR int64_t ps_ceil_div(int64_t x, int64_t y) { return x > 0 ? (x + y - 1) / y : 0; }
