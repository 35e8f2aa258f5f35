/* CUDA C++: narrow numbers in memory; the first `lanes`, zeros behind them. */

#ifndef PS_EMULATED
PS_INLINE float ps_half_value(uint16_t x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
/* To the nearest, ties to even. */
PS_INLINE uint16_t ps_half_of(float x)
{
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#endif
typedef struct {
    uint16_t at[PS_LANES];
} ps_narrow;
/* Two at once, where they lie in one word. */
PS_INLINE ps_narrow ps_load_narrow(const uint16_t *p, int lanes)
{
    ps_narrow x = {};
    if (lanes == 2 && (uintptr_t)p % 4 == 0) {
        const uint32_t pair = *(const uint32_t *)p;
        x.at[0] = (uint16_t)pair, x.at[1] = (uint16_t)(pair >> 16);
        return x;
    }
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            x.at[i] = p[i];
    return x;
}
PS_INLINE void ps_store_narrow(uint16_t *p, ps_narrow x, int lanes)
{
    if (lanes == 2 && (uintptr_t)p % 4 == 0) {
        *(uint32_t *)p = x.at[0] | (uint32_t)x.at[1] << 16;
        return;
    }
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            p[i] = x.at[i];
}
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    const ps_narrow x = ps_load_narrow(p, lanes);
    PS_EACH_LANE(ps_bf16_value(x.at[i]));
}
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    ps_narrow y;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        y.at[i] = ps_bf16_of(x.lane[i]);
    ps_store_narrow(p, y, lanes);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    const ps_narrow x = ps_load_narrow(p, lanes);
    PS_EACH_LANE(ps_half_value(x.at[i]));
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    ps_narrow y;
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        y.at[i] = ps_half_of(x.lane[i]);
    ps_store_narrow(p, y, lanes);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_splat(ps_half_value(*p)); }
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
