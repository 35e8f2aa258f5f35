/* SVE with FEAT_BF16: one instruction rounds to bf16, to the nearest. */
PS_INLINE void ps_store_bf16_at_once(uint16_t *p, ps_vec x, int lanes)
{
    const svbfloat16_t y = svcvt_bf16_f32_x(PS_ALL, x);
    svst1h_u32(PS_BELOW(lanes), p, svreinterpret_u32_bf16(y));
}
#define ps_store_bf16 ps_store_bf16_at_once
