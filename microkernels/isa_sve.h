/* The scalable vectors of aarch64 (SVE) at one length, which -msve-vector-bits says as well: 32 vector
 * registers, predicates for ragged vectors.  Code for one length computes nonsense at another one. */
#if defined(__GNUC__) && !defined(__clang__)
/* Ahead of register allocation gcc would load every row's A first, and spill accumulators. */
#pragma GCC optimize("no-schedule-insns")
#endif
#include <arm_sve.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET

/* Bytes of a vector in this thread: Linux may have made them shorter than the CPU's. */
static PS_KERNEL __attribute__((unused)) int ps_vector_bytes(void)
{
    int64_t bytes;
    __asm__ volatile("rdvl %0, #1" : "=r"(bytes));
    return (int)bytes;
}
/* Bits by which Linux reports features: Documentation/arch/arm64/elf_hwcaps.rst. */
PS_SCALAR int ps_has_sve(void)
{
#if defined(__linux__)
    const unsigned long more = getauxval(AT_HWCAP2), needed = PS_SVE_HWCAP2;
    return getauxval(AT_HWCAP) >> 22 & 1 && (more & needed) == needed &&
           ps_vector_bytes() == PS_SVE_BITS / 8;
#else
    return 0; /* no other system says what there is */
#endif
}
#define PS_CPU_OK ps_has_sve

/* A vector that is in a register here, whatever is done with it later.  clang puts vectors of no fixed
 * length there alone. */
#define PS_SETTLE(x)                                                                               \
    do {                                                                                           \
        __typeof__(svadd_x(svptrue_b32(), x, x)) ps_settled = x;                                   \
        __asm__ volatile("" : "+w"(ps_settled));                                                   \
        x = ps_settled;                                                                            \
    } while (0)
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND PS_SETTLE

enum { PS_LANES = PS_SVE_BITS / 32, PS_REGISTERS = 32 };
typedef svfloat32_t ps_vec __attribute__((arm_sve_vector_bits(PS_SVE_BITS)));

/* The predicates of all lanes, and of the first ones. */
#define PS_ALL svptrue_b32()
#define PS_BELOW(lanes) svwhilelt_b32_s32(0, lanes)

PS_INLINE ps_vec ps_zero(void) { return svdup_n_f32(0.0f); }
PS_INLINE ps_vec ps_splat(float x) { return svdup_n_f32(x); }
PS_INLINE ps_vec ps_load(const float *p) { return svld1_f32(PS_ALL, p); }
PS_INLINE void ps_store(float *p, ps_vec x) { svst1_f32(PS_ALL, p, x); }
/* The cores see for themselves that whole lines are written, and do not read them first. */
PS_INLINE void ps_stream(float *p, ps_vec x) { svst1_f32(PS_ALL, p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes) { return svld1_f32(PS_BELOW(lanes), p); }
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    return svld1_f32(svbic_b_z(PS_ALL, PS_BELOW(to), PS_BELOW(from)), p);
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes) { svst1_f32(PS_BELOW(lanes), p, x); }
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return svmla_f32_x(PS_ALL, z, x, y); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return svadd_f32_x(PS_ALL, x, y); }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return svmul_f32_x(PS_ALL, x, y); }
/* FMAX would give a NaN of x as well. */
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return svsel_f32(svcmpgt_f32(PS_ALL, x, y), x, y); }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return svsel_f32(svcmplt_f32(PS_ALL, x, y), x, y); }
/* x[i] lane j <-> x[j] lane i.  A lane of all has a number, whose upper bits are i and whose lower bits
 * are j: a turn rotates them by one. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    enum { HALF = PS_LANES / 2 };
    PS_UNROLL
    for (int turn = 1; turn < PS_LANES; turn *= 2) {
        _Alignas(64) ps_vec y[PS_LANES];
        PS_UNROLL
        for (int i = 0; i < HALF; ++i) {
            y[2 * i] = svzip1_f32(x[i], x[i + HALF]);
            y[2 * i + 1] = svzip2_f32(x[i], x[i + HALF]);
        }
        PS_UNROLL
        for (int i = 0; i < PS_LANES; ++i)
            x[i] = y[i];
    }
}
/* Lanes of x from n on, then the first n of y, 0 < n < PS_LANES. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
#define PS_SHIFT(n)                                                                                \
    case n:                                                                                        \
        return svext_f32(x, y, n);
    switch (n) {
        PS_SHIFT(1) PS_SHIFT(2) PS_SHIFT(3) PS_SHIFT(4) PS_SHIFT(5) PS_SHIFT(6) PS_SHIFT(7)
        PS_SHIFT(8) PS_SHIFT(9) PS_SHIFT(10) PS_SHIFT(11) PS_SHIFT(12) PS_SHIFT(13) PS_SHIFT(14)
    default:
        return svext_f32(x, y, 15);
    }
#undef PS_SHIFT
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec even = svuzp1_f32(*x, *y), odd = svuzp2_f32(*x, *y);
    *x = even, *y = odd;
}
/* Lane i of the result is lane i ^ d of x. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    return svtbl_f32(x, sveor_n_u32_x(PS_ALL, svindex_u32(0, 1), (uint32_t)d));
}
