/* CUDA C++: narrow numbers in memory; the first `lanes`, zeros behind them. */
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    PS_EACH_LANE(i < lanes ? ps_bf16_value(p[i]) : 0.0f);
}
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = ps_bf16_of(x.lane[i]);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    PS_EACH_LANE(i < lanes ? ps_f16_value(p[i]) : 0.0f);
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = ps_f16_of(x.lane[i]);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_splat(ps_f16_value(*p)); }
/* No gain here from loading even and odd elements apart, or from storing several vectors at once. */
enum { PS_BF16_PAIRS = 0, PS_BF16_WIDE = 1 };
PS_INLINE void ps_load_bf16_pair(const uint16_t *p, int lanes, ps_vec *even, ps_vec *odd)
{
    *even = ps_load_bf16(p, lanes < PS_LANES ? lanes : PS_LANES), *odd = ps_zero();
}
PS_INLINE void ps_interleave(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
PS_INLINE void ps_store_bf16_wide(uint16_t *p, const ps_vec *x, int count)
{
    ps_store_bf16(p, *x, count * PS_LANES);
}
/* No way past the caches. */
enum { PS_16BIT_STREAM = 1 };
PS_INLINE void ps_stream_bf16(uint16_t *p, const ps_vec *x) { ps_store_bf16(p, *x, PS_LANES); }
PS_INLINE void ps_stream_f16(uint16_t *p, const ps_vec *x) { ps_store_f16(p, *x, PS_LANES); }
