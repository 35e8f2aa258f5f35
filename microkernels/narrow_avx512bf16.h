/* AVX512-BF16: one instruction rounds to bf16, to the nearest; it takes denormals as zeros. */
PS_INLINE void ps_store_bf16_at_once(uint16_t *p, ps_vec x, int lanes)
{
    ps_store_16bit(p, (__m256i)_mm512_cvtneps_pbh(x), lanes);
}
#define ps_store_bf16 ps_store_bf16_at_once
