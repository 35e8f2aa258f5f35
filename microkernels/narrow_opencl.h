/* OpenCL C: narrow numbers in memory; the first `lanes`, zeros behind them.  Halves are converted as
 * they are loaded and stored; of bf16 the upper half of a float is kept. */
typedef PS_PASTE(ushort, PS_LANES) ps_narrow;

PS_INLINE ps_vec ps_of_bf16(ps_narrow x)
{
    return PS_PASTE(as_float, PS_LANES)(PS_PASTE(convert_uint, PS_LANES)(x) << 16);
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE ps_narrow ps_to_bf16(ps_vec x)
{
    const ps_lanes bits = PS_PASTE(as_uint, PS_LANES)(x), last = bits >> 16 & 1u;
    const ps_lanes rounded = isnan(x) ? bits | 0x400000u : bits + 0x7fffu + last;
    return PS_PASTE(convert_ushort, PS_LANES)(rounded >> 16);
}
PS_INLINE ps_vec ps_load_bf16(const __global uint16_t *p, int lanes)
{
    ps_narrow x = (ps_narrow)(0);
    if (lanes == PS_LANES)
        return ps_of_bf16(PS_PASTE(vload, PS_LANES)(0, p));
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            x[i] = p[i];
    return ps_of_bf16(x);
}
PS_INLINE void ps_store_bf16(__global uint16_t *p, ps_vec x, int lanes)
{
    const ps_narrow y = ps_to_bf16(x);
    if (lanes == PS_LANES) {
        PS_PASTE(vstore, PS_LANES)(y, 0, p);
        return;
    }
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = y[i];
}
PS_INLINE ps_vec ps_load_f16(const __global uint16_t *p, int lanes)
{
    ps_vec x = ps_zero();
    if (lanes == PS_LANES)
        return PS_PASTE(vload_half, PS_LANES)(0, (const __global half *)p);
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            x[i] = vload_half(i, (const __global half *)p);
    return x;
}
PS_INLINE void ps_store_f16(__global uint16_t *p, ps_vec x, int lanes)
{
    if (lanes == PS_LANES) {
        PS_PASTE(PS_PASTE(vstore_half, PS_LANES), _rte)(x, 0, (__global half *)p);
        return;
    }
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            vstore_half_rte(x[i], i, (__global half *)p);
}
PS_INLINE ps_vec ps_splat_f16(const __global uint16_t *p)
{
    return ps_splat(vload_half(0, (const __global half *)p));
}
/* No gain here from loading even and odd elements apart, or from storing several vectors at once. */
enum { PS_BF16_PAIRS = 0, PS_BF16_WIDE = 1 };
PS_INLINE void ps_load_bf16_pair(const __global uint16_t *p, int lanes, ps_vec *even, ps_vec *odd)
{
    *even = ps_load_bf16(p, lanes < PS_LANES ? lanes : PS_LANES), *odd = ps_zero();
}
PS_INLINE void ps_interleave(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
PS_INLINE void ps_store_bf16_wide(__global uint16_t *p, const ps_vec *x, int count)
{
    ps_store_bf16(p, *x, count * PS_LANES);
}
/* No way past the caches. */
enum { PS_16BIT_STREAM = 1 };
PS_INLINE void ps_stream_bf16(__global uint16_t *p, const ps_vec *x)
{
    ps_store_bf16(p, *x, PS_LANES);
}
PS_INLINE void ps_stream_f16(__global uint16_t *p, const ps_vec *x)
{
    ps_store_f16(p, *x, PS_LANES);
}
