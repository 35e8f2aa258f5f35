/* AVX-512: number k of eight of 4 bits in each lane, as f32: a table of all sixteen. */
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    const ps_vec table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_permutexvar_ps(k ? _mm512_srli_epi32(x, (unsigned)(4 * k)) : x, table);
}
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    const ps_vec table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(k ? _mm512_srli_epi32(x, (unsigned)(4 * k)) : x, table);
}
