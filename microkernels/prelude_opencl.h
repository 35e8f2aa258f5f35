/* OpenCL C: what every other header uses.  PS_LANES is defined ahead. */
#pragma OPENCL FP_CONTRACT OFF

typedef long int64_t;
typedef ulong uint64_t;
typedef int int32_t;
typedef uint uint32_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef char int8_t;
typedef uchar uint8_t;

/* The memory that the work-items of a group share, where they wait for each other, and how many a
 * kernel's groups have. */
#define PS_LOCAL __local
#define PS_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define PS_GROUP(items) __attribute__((reqd_work_group_size(items, 1, 1)))
typedef long ps_place; /* in y, kept by a work-item */

#define _Alignas(bytes) __attribute__((aligned(bytes)))
#define UINT64_C(value) value##UL
#define UINT32_C(value) value##U
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#define INT64_MIN LONG_MIN
#define INT64_MAX LONG_MAX
#ifndef cl_khr_fp64
#define PS_NO_DOUBLE
#endif
#define PS_UNROLL _Pragma("unroll")
#define PS_KERNEL
#define PS_LOOP
#define PS_SCALAR static __attribute__((unused))
#define PS_SMALL static inline __attribute__((always_inline, unused))
/* A function may exist once for the device's memory and once for a work-item's own. */
#define PS_INLINE static inline __attribute__((always_inline, unused, overloadable))
/* No compiler of a device takes hints of this kind, or tells what it knows. */
#define __builtin_prefetch(...) ((void)0)
#define __builtin_constant_p(x) 0
#define __builtin_fabsf fabs
#define __builtin_sqrtf sqrt
#define __builtin_rintf rint
#define __builtin_fmaf fma
#define __builtin_copysignf copysign
#define __builtin_fabs fabs
#define __builtin_roundf round
#define __builtin_floorf floor
#define __builtin_ceilf ceil
#define sqrtf sqrt

/* Integers, for any caller; they are divided by numbers above 0. */
PS_SMALL int64_t ps_least(int64_t x, int64_t y) { return x < y ? x : y; }
PS_SMALL int64_t ps_most(int64_t x, int64_t y) { return x > y ? x : y; }
PS_SMALL int64_t ps_floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && x < 0); }
PS_SMALL int64_t ps_ceil_div(int64_t x, int64_t y) { return x / y + (x % y > 0); }
PS_SMALL int ps_is_aligned(const __global void *p, ulong bytes) { return (ulong)p % bytes == 0; }

/* Whether denormals count as 0 is an option of the build, not the mode of a thread. */
PS_SMALL uint64_t ps_flush_denormals(void) { return 0; }
PS_SMALL void ps_restore_mode(uint64_t mode) { (void)mode; }

/* Within the memory of the device, ends first where the places overlap. */
PS_SMALL void memmove(__global void *to, const __global void *from, ulong bytes)
{
    __global char *y = (__global char *)to;
    const __global char *x = (const __global char *)from;
    if (y <= x)
        for (ulong i = 0; i < bytes; ++i)
            y[i] = x[i];
    else
        for (ulong i = bytes; i-- > 0;)
            y[i] = x[i];
}
