/* CUDA C++: vectors of PS_LANES floats in the registers of a thread. */

/* A vector that is in a register here, if the compiler likes. */
#define PS_SETTLE(x) ((void)0)

typedef struct alignas(4 * PS_LANES) {
    float lane[PS_LANES];
} ps_vec;
#define PS_EACH_LANE(value)                                                                        \
    ps_vec z;                                                                                      \
    PS_UNROLL                                                                                      \
    for (int i = 0; i < PS_LANES; ++i)                                                             \
        z.lane[i] = value;                                                                         \
    return z

PS_INLINE ps_vec ps_splat(float x) { PS_EACH_LANE(x); }
PS_INLINE ps_vec ps_zero(void) { return ps_splat(0.0f); }
PS_INLINE ps_vec ps_load(const float *p) { PS_EACH_LANE(p[i]); }
/* Where p is a multiple of a vector: one instruction. */
PS_INLINE ps_vec ps_load_aligned(const float *p)
{
    return *(const ps_vec *)p;
}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes) { PS_EACH_LANE(i < lanes ? p[i] : 0.0f); }
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = x.lane[i];
}
PS_INLINE void ps_store(float *p, ps_vec x) { ps_store_first(p, x, PS_LANES); }
PS_INLINE ps_vec ps_load_shared(const float *p) { return ps_load(p); }
PS_INLINE void ps_store_shared(float *p, ps_vec x) { ps_store(p, x); }
PS_INLINE float ps_lane(ps_vec x, int i) { return x.lane[i]; }
/* No way past the caches. */
PS_INLINE void ps_stream(float *p, ps_vec x) { ps_store(p, x); }
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        z.lane[i] = __fmaf_rn(x.lane[i], y.lane[i], z.lane[i]);
    return z;
}
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { PS_EACH_LANE(x.lane[i] + y.lane[i]); }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { PS_EACH_LANE(x.lane[i] * y.lane[i]); }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y)
{
    PS_EACH_LANE(x.lane[i] > y.lane[i] ? x.lane[i] : y.lane[i]);
}
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y)
{
    PS_EACH_LANE(x.lane[i] < y.lane[i] ? x.lane[i] : y.lane[i]);
}
PS_INLINE ps_vec operator-(ps_vec x, ps_vec y) { PS_EACH_LANE(x.lane[i] - y.lane[i]); }
/* Lane i of the result is lane i ^ d of x; d is a power of two below PS_LANES. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d) { PS_EACH_LANE(x.lane[i ^ d]); }
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec a = *x, b = *y;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i) {
        const int at = 2 * i % PS_LANES;
        x->lane[i] = 2 * i < PS_LANES ? a.lane[at] : b.lane[at];
        y->lane[i] = 2 * i < PS_LANES ? a.lane[at + 1] : b.lane[at + 1];
    }
}
/* Lanes of x from n on, then the first n of y, 0 < n < PS_LANES. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    PS_EACH_LANE(i + n < PS_LANES ? x.lane[(i + n) % PS_LANES] : y.lane[(i + n) % PS_LANES]);
}
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i) {
        PS_UNROLL
        for (int j = 0; j < PS_LANES; ++j) {
            if (j >= i)
                continue;
            const float moved = x[i].lane[j];
            x[i].lane[j] = x[j].lane[i];
            x[j].lane[i] = moved;
        }
    }
}
