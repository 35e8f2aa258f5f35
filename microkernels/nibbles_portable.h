/* Any CPU: number k of eight of 4 bits in each lane, as f32. */
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    return ps_to_real(x >> 4 * k & ps_int_splat(15));
}
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    const ps_int eight = ps_int_splat(8);
    return ps_to_real(((x >> 4 * k & ps_int_splat(15)) ^ eight) - eight);
}
