/* AVX2: the largest, and the sum, of 32-bit whole numbers of all lanes. */
PS_INLINE __m128i ps_swap_halves(__m128i x) { return _mm_shuffle_epi32(x, 0x4e); }
PS_INLINE __m128i ps_swap_pairs(__m128i x) { return _mm_shuffle_epi32(x, 0xb1); }
PS_INLINE int32_t ps_int_most(ps_int x)
{
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epi32(y, ps_swap_halves(y));
    return _mm_cvtsi128_si32(_mm_max_epi32(y, ps_swap_pairs(y)));
}
PS_INLINE int32_t ps_int_total(ps_int x)
{
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, ps_swap_halves(y));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, ps_swap_pairs(y)));
}
