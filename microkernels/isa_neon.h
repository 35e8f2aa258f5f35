/* Advanced SIMD of aarch64: 4 lanes of f32, 32 vector registers; a ragged vector is read and
 * written lane by lane. */
#if defined(__GNUC__) && !defined(__clang__)
/* Ahead of register allocation gcc would load every row's A first, and spill accumulators. */
#pragma GCC optimize("no-schedule-insns")
#endif
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET

/* Bits by which Linux reports features: Documentation/arch/arm64/elf_hwcaps.rst. */
PS_SCALAR int ps_has_bits(unsigned long hwcap, unsigned long hwcap2)
{
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & hwcap) == hwcap && (getauxval(AT_HWCAP2) & hwcap2) == hwcap2;
#else
    return hwcap <= 2 && hwcap2 == 0; /* what every aarch64 has */
#endif
}
PS_SCALAR int ps_has_neon(void) { return ps_has_bits(1 << 1, 0); }
#define PS_CPU_OK ps_has_neon

/* A vector that is in a register here, whatever is done with it later. */
#define PS_SETTLE(x) __asm__ volatile("" : "+w"(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND PS_SETTLE

enum { PS_LANES = 4, PS_REGISTERS = 32 };
typedef float32x4_t ps_vec;

PS_INLINE ps_vec ps_zero(void) { return vdupq_n_f32(0.0f); }
PS_INLINE ps_vec ps_splat(float x) { return vdupq_n_f32(x); }
PS_INLINE ps_vec ps_load(const float *p) { return vld1q_f32(p); }
PS_INLINE void ps_store(float *p, ps_vec x) { vst1q_f32(p, x); }
/* The cores see for themselves that whole lines are written, and do not read them first. */
PS_INLINE void ps_stream(float *p, ps_vec x) { vst1q_f32(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    if (lanes >= PS_LANES)
        return vld1q_f32(p);
    const float32x2_t none = vdup_n_f32(0.0f);
    if (lanes == 3)
        return vcombine_f32(vld1_f32(p), vld1_lane_f32(p + 2, none, 0));
    if (lanes == 2)
        return vcombine_f32(vld1_f32(p), none);
    return lanes == 1 ? vcombine_f32(vld1_lane_f32(p, none, 0), none) : ps_zero();
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    ps_vec x = ps_zero();
    if (from <= 0 && to > 0)
        x = vld1q_lane_f32(p, x, 0);
    if (from <= 1 && to > 1)
        x = vld1q_lane_f32(p + 1, x, 1);
    if (from <= 2 && to > 2)
        x = vld1q_lane_f32(p + 2, x, 2);
    if (from <= 3 && to > 3)
        x = vld1q_lane_f32(p + 3, x, 3);
    return x;
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    if (lanes >= PS_LANES)
        vst1q_f32(p, x);
    else if (lanes >= 2)
        vst1_f32(p, vget_low_f32(x));
    if (lanes == 3)
        vst1q_lane_f32(p + 2, x, 2);
    else if (lanes == 1)
        vst1q_lane_f32(p, x, 0);
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return vfmaq_f32(z, x, y); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return vaddq_f32(x, y); }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return vmulq_f32(x, y); }
/* fmax would give a NaN of x as well. */
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    const float32x4x2_t a = vtrnq_f32(x[0], x[1]), b = vtrnq_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    x[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    x[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    x[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
/* Lanes of x from n on, then the first n of y, 0 < n < 4. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    return n == 1 ? vextq_f32(x, y, 1) : n == 2 ? vextq_f32(x, y, 2) : vextq_f32(x, y, 3);
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec even = vuzp1q_f32(*x, *y), odd = vuzp2q_f32(*x, *y);
    *x = even, *y = odd;
}
/* Lane i of the result is lane i ^ d of x; d is 1 or 2. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    return d == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
}
