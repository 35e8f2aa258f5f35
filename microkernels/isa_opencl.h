/* OpenCL C: vectors of PS_LANES floats, 4, 8 or 16. */
#define PS_PASTE_(a, b) a##b
#define PS_PASTE(a, b) PS_PASTE_(a, b)

/* A vector that is in a register here, if the compiler likes. */
#define PS_SETTLE(x) ((void)0)

typedef PS_PASTE(float, PS_LANES) ps_vec;
typedef PS_PASTE(uint, PS_LANES) ps_lanes;

PS_INLINE ps_vec ps_zero(void) { return (ps_vec)(0.0f); }
PS_INLINE ps_vec ps_splat(float x) { return (ps_vec)(x); }
PS_INLINE ps_vec ps_load(const __global float *p) { return PS_PASTE(vload, PS_LANES)(0, p); }
PS_INLINE ps_vec ps_load_aligned(const __global float *p) { return *(const __global ps_vec *)p; }
PS_INLINE ps_vec ps_load(const float *p) { return PS_PASTE(vload, PS_LANES)(0, p); }
PS_INLINE ps_vec ps_load_shared(const PS_LOCAL float *p) { return PS_PASTE(vload, PS_LANES)(0, p); }
PS_INLINE void ps_store_shared(PS_LOCAL float *p, ps_vec x) { PS_PASTE(vstore, PS_LANES)(x, 0, p); }
PS_INLINE float ps_lane(ps_vec x, int i) { return x[i]; }
PS_INLINE void ps_store(__global float *p, ps_vec x) { PS_PASTE(vstore, PS_LANES)(x, 0, p); }
PS_INLINE void ps_store(float *p, ps_vec x) { PS_PASTE(vstore, PS_LANES)(x, 0, p); }
/* No way past the caches. */
PS_INLINE void ps_stream(__global float *p, ps_vec x) { ps_store(p, x); }
PS_INLINE ps_vec ps_load_first(const __global float *p, int lanes)
{
    ps_vec x = ps_zero();
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            x[i] = p[i];
    return x;
}
PS_INLINE void ps_store_first(__global float *p, ps_vec x, int lanes)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = x[i];
}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    ps_vec x = ps_zero();
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            x[i] = p[i];
    return x;
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = x[i];
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return fma(x, y, z); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return x + y; }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return x * y; }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return x > y ? x : y; }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return x < y ? x : y; }
/* Lane i of the result is lane i ^ d of x; d is a power of two below PS_LANES. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    ps_lanes places;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        places[i] = i ^ d;
    return shuffle(x, places);
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec a = *x, b = *y;
    *x = (ps_vec)(a.even, b.even), *y = (ps_vec)(a.odd, b.odd);
}
/* Lanes of x from n on, then the first n of y, 0 < n < PS_LANES. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    ps_lanes places;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        places[i] = i + n;
    return shuffle2(x, y, places);
}
/* x[i] lane j <-> x[j] lane i: blocks of apart the size change places, then halves of these. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    PS_UNROLL
    for (int apart = PS_LANES / 2; apart; apart /= 2) {
        ps_lanes first, second;
        PS_UNROLL
        for (int j = 0; j < PS_LANES; ++j) {
            first[j] = j & apart ? PS_LANES + (j ^ apart) : j;
            second[j] = j & apart ? PS_LANES + j : j ^ apart;
        }
        PS_UNROLL
        for (int i = 0; i < PS_LANES; ++i) {
            if (i & apart)
                continue;
            const ps_vec a = x[i], b = x[i + apart];
            x[i] = shuffle2(a, b, first), x[i + apart] = shuffle2(a, b, second);
        }
    }
}
