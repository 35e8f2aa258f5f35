/* CUDA C++: what every other header uses.  PS_LANES is defined ahead. */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

/* As in prelude_opencl.h; what points to the memory that a block shares points anywhere. */
#define PS_LOCAL
#define PS_BARRIER() __syncthreads()
/* Room for two blocks: without it the compiler may spill registers to have room for more. */
#define PS_GROUP(items) __launch_bounds__(items, (items) > 256 ? 1 : 2)
typedef long ps_place;

#define _Alignas(bytes) alignas(bytes)
#define UINT64_C(value) value##UL
#define UINT32_C(value) value##U
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807L - 1)
#define INT64_MAX 9223372036854775807L
#define UINT64_MAX 18446744073709551615UL
#define NAN __int_as_float(0x7fc00000)
#define INFINITY __int_as_float(0x7f800000)
#define PS_UNROLL _Pragma("unroll")
#define PS_KERNEL
#define PS_LOOP
#define PS_SCALAR static __device__ __attribute__((unused))
#define PS_SMALL static __device__ __forceinline__ __attribute__((unused))
#define PS_INLINE PS_SMALL
#define PS_CALL(activation, x, vecs) ((void)0)
/* No compiler of a device takes hints of this kind, or tells what it knows. */
#define __builtin_prefetch(...) ((void)0)
#define __builtin_constant_p(x) 0
#define __builtin_memcpy memcpy
#define __builtin_fabsf fabsf
#define __builtin_fabs fabs
#define __builtin_sqrtf sqrtf
#define __builtin_rintf rintf
#define __builtin_fmaf __fmaf_rn
#define __builtin_fmodf fmodf
#define __builtin_copysignf copysignf
#define __builtin_roundf roundf
#define __builtin_floorf floorf
#define __builtin_ceilf ceilf
#define __builtin_inff() INFINITY
#define __builtin_nanf(text) NAN

/* An address of whatever it is used for, as C converts one. */
struct ps_any {
    const void *at;
    ps_any() = default;
    __device__ ps_any(const void *place) : at(place) {}
    template <class Element> __device__ operator Element *() const { return (Element *)at; }
};

/* Integers, for any caller; they are divided by numbers above 0. */
PS_SMALL int64_t ps_least(int64_t x, int64_t y) { return x < y ? x : y; }
PS_SMALL int64_t ps_most(int64_t x, int64_t y) { return x > y ? x : y; }
PS_SMALL int64_t ps_floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && x < 0); }
PS_SMALL int64_t ps_ceil_div(int64_t x, int64_t y) { return x / y + (x % y > 0); }
PS_SMALL int ps_is_aligned(const void *p, uintptr_t bytes) { return (uintptr_t)p % bytes == 0; }

/* Whether denormals count as 0 is an option of the build, not the mode of a thread. */
PS_SMALL uint64_t ps_flush_denormals(void) { return 0; }
PS_SMALL void ps_restore_mode(uint64_t mode) { (void)mode; }

/* Within the memory of the device, ends first where the places overlap. */
#define memmove ps_move
PS_SMALL void ps_move(void *to, const void *from, uint64_t bytes)
{
    char *y = (char *)to;
    const char *x = (const char *)from;
    if (y <= x)
        for (uint64_t i = 0; i < bytes; ++i)
            y[i] = x[i];
    else
        for (uint64_t i = bytes; i-- > 0;)
            y[i] = x[i];
}
