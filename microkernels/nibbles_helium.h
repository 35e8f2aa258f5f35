/* Helium: number k of eight of 4 bits in each lane, as f32. */
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    return ps_to_real(vshrq_n_s32(vshlq_r_s32(x, 28 - 4 * k), 28));
}
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    const uint32x4_t first = vshlq_r_u32(vreinterpretq_u32_s32(x), -4 * k);
    return vcvtq_f32_u32(vandq_u32(first, vdupq_n_u32(15)));
}
