/* What every other header here uses. */
#include <stdint.h>

#define PS_KERNEL PS_TARGET __attribute__((noinline))
#define PS_SCALAR static inline __attribute__((unused))
#if defined(__clang__)
#define PS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PS_UNROLL _Pragma("GCC unroll 64")
#endif

/* An answer that never changes but takes long to get is kept: an entry asks on every call.  `kept`
 * is 0 before, then 1 for yes and 2 for no; threads that ask at the same time get the same. */
PS_SCALAR int ps_kept(int *kept, int (*ask)(void))
{
    int known = __atomic_load_n(kept, __ATOMIC_RELAXED);
    if (!known) {
        known = ask() ? 1 : 2;
        __atomic_store_n(kept, known, __ATOMIC_RELAXED);
    }
    return known == 1;
}

/* Integers, for any caller. */
PS_SCALAR int64_t ps_least(int64_t x, int64_t y) { return x < y ? x : y; }
PS_SCALAR int64_t ps_most(int64_t x, int64_t y) { return x > y ? x : y; }
PS_SCALAR int64_t ps_floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && x < 0); }
/* ceil(x / y) for y > 0, and 0 for negative x. */
PS_SCALAR int64_t ps_ceil_div(int64_t x, int64_t y) { return x > 0 ? (x + y - 1) / y : 0; }
