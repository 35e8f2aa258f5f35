/* What every other header here uses. */
#include <stdint.h>

#define PS_KERNEL PS_TARGET __attribute__((noinline))
#if defined(__clang__)
#define PS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PS_UNROLL _Pragma("GCC unroll 64")
#endif
