/* SVE: number k of eight of 4 bits in each lane, as f32. */
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    const svint32_t high = svlsl_n_s32_x(PS_ALL, x, (uint32_t)(28 - 4 * k));
    return ps_to_real(svasr_n_s32_x(PS_ALL, high, 28));
}
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    const svuint32_t low = svlsr_n_u32_x(PS_ALL, svreinterpret_u32_s32(x), (uint32_t)(4 * k));
    return ps_to_real(svreinterpret_s32_u32(svand_n_u32_x(PS_ALL, low, 15)));
}
