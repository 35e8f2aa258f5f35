/* AVX2: 32-bit whole numbers, and narrow ones in memory. */

/* Whole numbers of 32 bits. */
typedef __m256i ps_int;

PS_INLINE ps_int ps_int_splat(int32_t x) { return _mm256_set1_epi32(x); }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    return lanes == PS_LANES ? _mm256_loadu_si256((const __m256i *)p)
                             : _mm256_maskload_epi32(p, ps_first(lanes));
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    if (lanes == PS_LANES)
        _mm256_storeu_si256((__m256i *)p, x);
    else
        ps_store_first((float *)p, _mm256_castsi256_ps(x), lanes);
}
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return _mm256_add_epi32(x, y); }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return _mm256_xor_si256(x, y); }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return _mm256_max_epi32(x, y); }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return _mm256_min_epi32(x, y); }
/* To the nearest, ties to even; x < 2^31, and what is below -2^31 becomes INT32_MIN. */
PS_INLINE ps_int ps_to_int(ps_vec x) { return _mm256_cvtps_epi32(x); }
PS_INLINE ps_vec ps_to_real(ps_int x) { return _mm256_cvtepi32_ps(x); }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return _mm256_castsi256_ps(x); }
PS_INLINE ps_int ps_as_int(ps_vec x) { return _mm256_castps_si256(x); }

/* Narrow numbers in memory; the first `lanes`, zeros behind them.  A part of a vector goes through
 * a buffer: AVX2 has no masks for them. */
PS_INLINE __m128i ps_load_narrow(const void *p, int bytes)
{
    __m128i x = _mm_setzero_si128();
    __builtin_memcpy(&x, p, (unsigned)bytes);
    return x;
}
PS_INLINE void ps_store_narrow(void *p, __m128i x, int bytes)
{
    __builtin_memcpy(p, &x, (unsigned)bytes);
}
/* The low halves of 32-bit lanes, saturated as unsigned numbers. */
PS_INLINE __m128i ps_low_halves(__m256i x)
{
    const __m256i packed = _mm256_packus_epi32(x, x);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    const __m256i x = _mm256_cvtepu16_epi32(ps_load_narrow(p, 2 * lanes));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    const __m256i bits = _mm256_castps_si256(x), half = _mm256_set1_epi32(0x7fff);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, half));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i y = _mm256_blendv_epi8(near, quiet, nan);
    ps_store_narrow(p, ps_low_halves(_mm256_srli_epi32(y, 16)), 2 * lanes);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    return _mm256_cvtph_ps(ps_load_narrow(p, 2 * lanes));
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    const __m128i y = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    ps_store_narrow(p, y, 2 * lanes);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)*p));
}
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    return _mm256_cvtepu8_epi32(ps_load_narrow(p, lanes));
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    return _mm256_cvtepi8_epi32(ps_load_narrow(p, lanes));
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    const ps_int y = _mm256_min_epi32(_mm256_max_epi32(x, _mm256_setzero_si256()),
                                      _mm256_set1_epi32(255));
    const __m128i halves = ps_low_halves(y);
    ps_store_narrow(p, _mm_packus_epi16(halves, halves), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    const __m256i halves = _mm256_packs_epi32(x, x);
    const __m128i y = _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
    ps_store_narrow(p, _mm_packs_epi16(y, y), lanes);
}
/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    ps_int sum = _mm256_add_epi32(z, _mm256_madd_epi16(x, y));
    __asm__("" : "+x"(sum)); /* else gcc 12 holds a sum in two registers, and others in memory */
    return sum;
}
/* Two vectors of bf16 that lie side by side, as their even and their odd elements: one instruction
 * each, where keeping them in order takes two. */
enum { PS_BF16_PAIRS = 1 };
PS_INLINE void ps_load_bf16_pair(const uint16_t *p, int lanes, ps_vec *even, ps_vec *odd)
{
    __m256i x = _mm256_setzero_si256();
    __builtin_memcpy(&x, p, (unsigned)lanes * sizeof *p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}
/* Back in order. */
PS_INLINE void ps_interleave(ps_vec *even, ps_vec *odd)
{
    const ps_vec x = _mm256_unpacklo_ps(*even, *odd), y = _mm256_unpackhi_ps(*even, *odd);
    *even = _mm256_permute2f128_ps(x, y, 0x20);
    *odd = _mm256_permute2f128_ps(x, y, 0x31);
}
/* Results of four vectors, narrowed together.  Packing goes by halves of a vector: place 4 * i + v of
 * the words gets half i of vector v; the last step puts them in order. */
enum { PS_8BIT_WIDE = 4 };
PS_INLINE __m256i ps_pack_16bit(const ps_vec *x)
{
    return _mm256_packs_epi32(ps_as_int(x[0]), ps_as_int(x[1]));
}
PS_INLINE void ps_store_8bit_all(void *const *to, __m256i words, const int *used, int together)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i y = _mm256_permutevar8x32_epi32(words, order);
    const __m128i low = _mm256_castsi256_si128(y), high = _mm256_extracti128_si256(y, 1);
    if (together == 4) {
        _mm256_storeu_si256((__m256i *)to[0], y);
        return;
    }
    ps_store_narrow(to[0], low, together == 2 ? 16 : used[0]);
    if (together == 1)
        ps_store_narrow(to[1], _mm_unpackhi_epi64(low, low), used[1]);
    if (used[2])
        ps_store_narrow(to[2], high, together == 2 ? 16 : used[2]);
    if (together == 1)
        ps_store_narrow(to[3], _mm_unpackhi_epi64(high, high), used[3]);
}
PS_INLINE void ps_store_u8_all(uint8_t *const *to, const ps_vec *x, const int *used, int together)
{
    _Alignas(64) void *const at[] = {to[0], to[1], to[2], to[3]};
    const __m256i words = _mm256_packus_epi16(ps_pack_16bit(x), ps_pack_16bit(x + 2));
    ps_store_8bit_all(at, words, used, together);
}
PS_INLINE void ps_store_s8_all(int8_t *const *to, const ps_vec *x, const int *used, int together)
{
    _Alignas(64) void *const at[] = {to[0], to[1], to[2], to[3]};
    const __m256i words = _mm256_packs_epi16(ps_pack_16bit(x), ps_pack_16bit(x + 2));
    ps_store_8bit_all(at, words, used, together);
}
/* Results of several vectors in one store: nothing to gain here. */
enum { PS_BF16_WIDE = 1 };
PS_INLINE void ps_store_bf16_wide(uint16_t *p, const ps_vec *x, int count)
{
    ps_store_bf16(p, *x, count * PS_LANES);
}
/* No vectors of 16-bit results go past the caches here. */
enum { PS_16BIT_STREAM = 1 };
PS_INLINE void ps_stream_bf16(uint16_t *p, const ps_vec *x) { ps_store_bf16(p, *x, PS_LANES); }
PS_INLINE void ps_stream_f16(uint16_t *p, const ps_vec *x) { ps_store_f16(p, *x, PS_LANES); }
