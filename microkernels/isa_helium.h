/* Helium, the vectors of Armv8.1-M (MVE): 4 lanes of f32, 8 vector registers; ragged vectors are read and
 * written under a mask.  Products and sums take denormals for 0, whatever FPSCR says. */
#include <arm_mve.h>

#define PS_INLINE static inline __attribute__((always_inline, unused))
#define PS_CPU_OK() 1

/* A vector that is in a register here, whatever is done with it later. */
#define PS_SETTLE(x) __asm__ volatile("" : "+w"(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND PS_SETTLE

enum { PS_LANES = 4, PS_REGISTERS = 8 };
typedef float32x4_t ps_vec;

/* The first `lanes`: none where that is negative. */
PS_INLINE mve_pred16_t ps_first(int lanes) { return vctp32q((uint32_t)(lanes > 0 ? lanes : 0)); }

PS_INLINE ps_vec ps_zero(void) { return vdupq_n_f32(0.0f); }
PS_INLINE ps_vec ps_splat(float x) { return vdupq_n_f32(x); }
PS_INLINE ps_vec ps_load(const float *p) { return vldrwq_f32(p); }
PS_INLINE void ps_store(float *p, ps_vec x) { vstrwq_f32(p, x); }
/* There is no way past the caches. */
PS_INLINE void ps_stream(float *p, ps_vec x) { ps_store(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    return lanes >= PS_LANES ? ps_load(p) : vldrwq_z_f32(p, ps_first(lanes));
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    return vldrwq_z_f32(p, (mve_pred16_t)(ps_first(to) & ~ps_first(from)));
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    if (lanes >= PS_LANES)
        ps_store(p, x);
    else
        vstrwq_p_f32(p, x, ps_first(lanes));
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return vfmaq_f32(z, x, y); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return vaddq_f32(x, y); }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return vmulq_f32(x, y); }
/* VMAXNM would give a number of x where y is a NaN; "less" is true of one. */
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return vpselq_f32(x, y, vcmpgtq_f32(x, y)); }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return vpselq_f32(x, y, vcmpgtq_f32(y, x)); }
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    for (int i = 0; i < PS_LANES; ++i)
        for (int j = 0; j < i; ++j) {
            const float moved = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = moved;
        }
}
/* Lanes of x from n on, then the first n of y, 0 < n < 4. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    return n == 1   ? (ps_vec){x[1], x[2], x[3], y[0]}
           : n == 2 ? (ps_vec){x[2], x[3], y[0], y[1]}
                    : (ps_vec){x[3], y[0], y[1], y[2]};
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec a = *x, b = *y;
    *x = (ps_vec){a[0], a[2], b[0], b[2]};
    *y = (ps_vec){a[1], a[3], b[1], b[3]};
}
/* Lane i of the result is lane i ^ d of x; d is 1 or 2. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    return d == 1 ? vrev64q_f32(x) : (ps_vec){x[2], x[3], x[0], x[1]};
}
