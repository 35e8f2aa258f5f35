/* Where several vectors at once gain nothing: narrow_*.h that have none of this get it. */
/* No gain here from loading even and odd elements apart. */
enum { PS_BF16_PAIRS = 0 };
PS_INLINE void ps_load_bf16_pair(const uint16_t *p, int lanes, ps_vec *even, ps_vec *odd)
{
    *even = ps_load_bf16(p, lanes < PS_LANES ? lanes : PS_LANES);
    *odd = ps_zero();
}
PS_INLINE void ps_interleave(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
/* Results of several vectors in one store: nothing to gain here. */
enum { PS_8BIT_WIDE = 1, PS_BF16_WIDE = 1 };
PS_INLINE void ps_store_u8_all(uint8_t *const *to, const ps_vec *x, const int *used, int together)
{
    (void)together; /* one */
    ps_store_u8(to[0], ps_as_int(*x), used[0]);
}
PS_INLINE void ps_store_s8_all(int8_t *const *to, const ps_vec *x, const int *used, int together)
{
    (void)together; /* one */
    ps_store_s8(to[0], ps_as_int(*x), used[0]);
}
PS_INLINE void ps_store_bf16_wide(uint16_t *p, const ps_vec *x, int count)
{
    ps_store_bf16(p, *x, count * PS_LANES);
}
/* No vectors of 16-bit results go past the caches here. */
enum { PS_16BIT_STREAM = 1 };
PS_INLINE void ps_stream_bf16(uint16_t *p, const ps_vec *x) { ps_store_bf16(p, *x, PS_LANES); }
PS_INLINE void ps_stream_f16(uint16_t *p, const ps_vec *x) { ps_store_f16(p, *x, PS_LANES); }
