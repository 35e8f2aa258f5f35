/* AVX512-BF16: one instruction rounds to bf16, to the nearest; it takes denormals as zeros. */
PS_INLINE void ps_store_bf16_at_once(uint16_t *p, ps_vec x, int lanes)
{
    ps_store_16bit(p, (__m256i)_mm512_cvtneps_pbh(x), lanes);
}
#define ps_store_bf16 ps_store_bf16_at_once
PS_INLINE void ps_store_bf16_pair(uint16_t *p, const ps_vec *x, int count)
{
    (void)count; /* two */
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
}
#define ps_store_bf16_wide ps_store_bf16_pair
#define PS_BF16_WIDE 2
PS_INLINE void ps_stream_bf16_pair(uint16_t *p, const ps_vec *x)
{
    _mm512_stream_si512((void *)p, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
}
#define ps_stream_bf16 ps_stream_bf16_pair
