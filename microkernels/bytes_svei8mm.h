/* SVE with FEAT_I8MM: sum + the four unsigned numbers of each lane by the four signed ones of x. */
enum { PS_BYTES_WHOLE = 1 }; /* of 8 bits */
PS_INLINE ps_int ps_dot_bytes(ps_int w, ps_int x, ps_int sum)
{
    return svusdot_s32(sum, svreinterpret_u8_s32(w), svreinterpret_s8_s32(x));
}
PS_INLINE ps_int ps_int_shift(ps_int x, int count)
{
    return svlsl_n_s32_x(PS_ALL, x, (uint32_t)count);
}
