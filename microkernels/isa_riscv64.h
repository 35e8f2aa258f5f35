/* Vectors of RISC-V, version 1.0: f32 of a length that the header before this one sets.  Code says with
 * each operation how many lanes it has, and leaves what longer registers hold behind them alone. */
#if !defined(__clang__)
#error "vectors of RISC-V: compile this with clang, 17 or newer"
#endif
#include <riscv_vector.h>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET

/* Whether the CPU has vectors, Linux lends them to this thread (Documentation/arch/riscv/vector.rst),
 * and registers hold PS_LANES.  Drafts of the vectors do not know this operation: no lanes are left. */
PS_SCALAR int ps_ask_vectors(void)
{
#if defined(__linux__)
    enum { PS_VECTORS_OF = 70, PS_STATE = 3, PS_WITHHELD = 1 }; /* PR_RISCV_V_GET_CONTROL */
    if (!(getauxval(AT_HWCAP) >> ('V' - 'A') & 1) || (prctl(PS_VECTORS_OF) & PS_STATE) == PS_WITHHELD)
        return 0;
#endif
    unsigned long lanes;
    __asm__ volatile("vsetvli %0, zero, e32, m2, ta, ma" : "=r"(lanes) : : "vl", "vtype");
    return lanes >= PS_LANES;
}
PS_SCALAR int ps_has_vectors(void)
{
    static int kept;
    return ps_kept(&kept, ps_ask_vectors);
}
#define PS_CPU_OK ps_has_vectors

/* No product or sum takes an operand from memory. */
#define PS_SETTLE(x) ((void)(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND(x) __asm__ volatile("" : "+m"(x))

typedef float ps_vec __attribute__((ext_vector_type(PS_LANES)));
typedef float ps_vec_at __attribute__((ext_vector_type(PS_LANES), aligned(4), may_alias));

/* How many lanes that is. */
PS_INLINE size_t ps_count(int lanes)
{
    return lanes < 0 ? 0 : lanes > PS_LANES ? PS_LANES : (size_t)lanes;
}
PS_INLINE ps_vec ps_splat(float x) { return (ps_vec)x; }
PS_INLINE ps_vec ps_zero(void) { return ps_splat(0.0f); }
PS_INLINE ps_vec ps_load(const float *p) { return *(const ps_vec_at *)(const void *)p; }
PS_INLINE void ps_store(float *p, ps_vec x) { *(ps_vec_at *)(void *)p = x; }
/* There is no way past the caches. */
PS_INLINE void ps_stream(float *p, ps_vec x) { ps_store(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
/* Parts of vectors go through memory, which vectors of a fixed length share with the others. */
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    _Alignas(64) float x[PS_LANES];
    const vfloat32m2_t zero = __riscv_vfmv_v_f_f32m2(0.0f, PS_LANES);
    if (lanes >= PS_LANES)
        return ps_load(p);
    __riscv_vse32_v_f32m2(x, __riscv_vle32_v_f32m2_tu(zero, p, ps_count(lanes)), PS_LANES);
    return ps_load(x);
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    _Alignas(64) float x[PS_LANES];
    const size_t first = ps_count(from), end = ps_count(to), count = end > first ? end - first : 0;
    const vfloat32m2_t zero = __riscv_vfmv_v_f_f32m2(0.0f, PS_LANES);
    vfloat32m2_t part = __riscv_vle32_v_f32m2_tu(zero, p + first, count);
    part = __riscv_vslideup_vx_f32m2_tu(zero, part, first, first + count);
    __riscv_vse32_v_f32m2(x, part, PS_LANES);
    return ps_load(x);
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    _Alignas(64) float all[PS_LANES];
    const size_t count = ps_count(lanes);
    if (lanes >= PS_LANES) {
        ps_store(p, x);
        return;
    }
    ps_store(all, x);
    __riscv_vse32_v_f32m2(p, __riscv_vle32_v_f32m2(all, count), count);
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return __builtin_elementwise_fma(x, y, z); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return x + y; }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return x * y; }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return x > y ? x : y; }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return x < y ? x : y; }
/* Lane i of the result is lane i ^ d of x; d is 1, 2 or 4. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    ps_vec y = x;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        y[i] = x[i ^ d];
    return y;
}
/* The even elements of both, the first of them first, and the odd ones: halves of twice as long lanes. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    typedef uint32_t bits __attribute__((ext_vector_type(PS_LANES)));
    typedef uint64_t pairs __attribute__((ext_vector_type(PS_LANES)));
    typedef float floats __attribute__((ext_vector_type(2 * PS_LANES)));
    floats both;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        both[i] = (*x)[i], both[i + PS_LANES] = (*y)[i];
    *x = (ps_vec)__builtin_convertvector((pairs)both, bits);
    *y = (ps_vec)__builtin_convertvector((pairs)both >> 32, bits);
}
/* Lanes of x from n on, then the first n of y, 0 < n < PS_LANES. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    ps_vec z = y;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        z[i] = i + n < PS_LANES ? x[i + n] : y[i + n - PS_LANES];
    return z;
}
/* x[i] lane j <-> x[j] lane i: by strided loads, which take fewer instructions than moving lanes. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    enum { ROW = PS_LANES * sizeof(float) };
    _Alignas(64) float from[PS_LANES * PS_LANES];
    _Alignas(64) float column[PS_LANES * PS_LANES];
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        ps_store(from + i * PS_LANES, x[i]);
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        __riscv_vse32_v_f32m2(column + i * PS_LANES,
                              __riscv_vlse32_v_f32m2(from + i, ROW, PS_LANES), PS_LANES);
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = ps_load(column + i * PS_LANES);
}
