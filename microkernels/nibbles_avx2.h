/* AVX2: number k of eight of 4 bits in each lane, as f32. */
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    return ps_to_real(_mm256_srai_epi32(_mm256_slli_epi32(x, 28 - 4 * k), 28));
}
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    return ps_to_real(_mm256_and_si256(_mm256_srli_epi32(x, 4 * k), _mm256_set1_epi32(15)));
}
