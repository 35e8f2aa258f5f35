/* NEON: number k of eight of 4 bits in each lane, as f32. */
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    return ps_to_real(vshlq_s32(vshlq_s32(x, vdupq_n_s32(28 - 4 * k)), vdupq_n_s32(-28)));
}
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    return ps_to_real(vandq_s32(vshlq_s32(x, vdupq_n_s32(-4 * k)), vdupq_n_s32(15)));
}
