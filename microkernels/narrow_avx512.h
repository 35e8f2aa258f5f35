/* AVX-512: 32-bit whole numbers, and narrow ones in memory. */

/* Whole numbers of 32 bits. */
typedef __m512i ps_int;
#define PS_MASK(lanes) ((__mmask16)((1u << (lanes)) - 1u))

PS_INLINE ps_int ps_int_splat(int32_t x) { return _mm512_set1_epi32(x); }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    return lanes == PS_LANES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi32(PS_MASK(lanes), p);
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    _mm512_mask_storeu_epi32(p, PS_MASK(lanes), x);
}
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return _mm512_add_epi32(x, y); }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return _mm512_xor_si512(x, y); }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return _mm512_max_epi32(x, y); }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return _mm512_min_epi32(x, y); }
/* To the nearest, ties to even; x < 2^31, and what is below -2^31 becomes INT32_MIN. */
PS_INLINE ps_int ps_to_int(ps_vec x) { return _mm512_cvtps_epi32(x); }
PS_INLINE ps_vec ps_to_real(ps_int x) { return _mm512_cvtepi32_ps(x); }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return _mm512_castsi512_ps(x); }
PS_INLINE ps_int ps_as_int(ps_vec x) { return _mm512_castps_si512(x); }

/* Narrow numbers in memory; the first `lanes`, zeros behind them. */
PS_INLINE __m256i ps_load_16bit(const void *p, int lanes)
{
    return lanes == PS_LANES ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(PS_MASK(lanes), p);
}
PS_INLINE void ps_store_16bit(void *p, __m256i x, int lanes)
{
    if (lanes == PS_LANES)
        _mm256_storeu_si256(p, x);
    else
        _mm256_mask_storeu_epi16(p, PS_MASK(lanes), x);
}
PS_INLINE __m128i ps_load_8bit(const void *p, int lanes)
{
    return lanes == PS_LANES ? _mm_loadu_si128(p) : _mm_maskz_loadu_epi8(PS_MASK(lanes), p);
}
PS_INLINE void ps_store_8bit(void *p, __m128i x, int lanes)
{
    if (lanes == PS_LANES)
        _mm_storeu_si128(p, x);
    else
        _mm_mask_storeu_epi8(p, PS_MASK(lanes), x);
}
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    const __m512i x = _mm512_cvtepu16_epi32(ps_load_16bit(p, lanes));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE __m256i ps_to_bf16(ps_vec x)
{
    const __m512i bits = _mm512_castps_si512(x), half = _mm512_set1_epi32(0x7fff);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, half));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i y = _mm512_mask_blend_epi32(nan, near, quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(y, 16));
}
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    ps_store_16bit(p, ps_to_bf16(x), lanes);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    return _mm512_cvtph_ps(ps_load_16bit(p, lanes));
}
PS_INLINE __m256i ps_to_f16(ps_vec x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    ps_store_16bit(p, ps_to_f16(x), lanes);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)*p));
}
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    return _mm512_cvtepu8_epi32(ps_load_8bit(p, lanes));
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    return _mm512_cvtepi8_epi32(ps_load_8bit(p, lanes));
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    ps_store_8bit(p, _mm512_cvtusepi32_epi8(_mm512_max_epi32(x, _mm512_setzero_si512())), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    ps_store_8bit(p, _mm512_cvtsepi32_epi8(x), lanes);
}
/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    return _mm512_add_epi32(z, _mm512_madd_epi16(x, y));
}
/* Two vectors of bf16 that lie side by side, as their even and their odd elements: one instruction
 * each, where keeping them in order takes two. */
enum { PS_BF16_PAIRS = 1 };
PS_INLINE void ps_load_bf16_pair(const uint16_t *p, int lanes, ps_vec *even, ps_vec *odd)
{
    const __mmask32 mask = (__mmask32)((1ull << lanes) - 1u);
    const __m512i x =
        lanes == 2 * PS_LANES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(mask, p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}
/* Back in order. */
PS_INLINE void ps_interleave(ps_vec *even, ps_vec *odd)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const ps_vec x = *even, y = *odd;
    *even = _mm512_permutex2var_ps(x, low, y);
    *odd = _mm512_permutex2var_ps(x, high, y);
}
/* Results of four vectors, narrowed together.  Packing goes by quarters of a vector: place 4 * i + v
 * of the words gets quarter i of vector v; the last step puts them in order. */
enum { PS_8BIT_WIDE = 4 };
PS_INLINE __m512i ps_pack_16bit(const ps_vec *x)
{
    return _mm512_packs_epi32(ps_as_int(x[0]), ps_as_int(x[1]));
}
PS_INLINE void ps_store_8bit_all(void *const *to, __m512i words, const int *used, int together)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i y = _mm512_permutexvar_epi32(order, words);
    if (together == 4) {
        _mm512_storeu_si512(to[0], y);
    } else if (together == 2) {
        _mm256_storeu_si256(to[0], _mm512_castsi512_si256(y));
        if (used[2])
            _mm256_storeu_si256(to[2], _mm512_extracti64x4_epi64(y, 1));
    } else {
        ps_store_8bit(to[0], _mm512_castsi512_si128(y), used[0]);
        if (used[1])
            ps_store_8bit(to[1], _mm512_extracti32x4_epi32(y, 1), used[1]);
        if (used[2])
            ps_store_8bit(to[2], _mm512_extracti32x4_epi32(y, 2), used[2]);
        if (used[3])
            ps_store_8bit(to[3], _mm512_extracti32x4_epi32(y, 3), used[3]);
    }
}
PS_INLINE void ps_store_u8_all(uint8_t *const *to, const ps_vec *x, const int *used, int together)
{
    _Alignas(64) void *const at[] = {to[0], to[1], to[2], to[3]};
    const __m512i words = _mm512_packus_epi16(ps_pack_16bit(x), ps_pack_16bit(x + 2));
    ps_store_8bit_all(at, words, used, together);
}
PS_INLINE void ps_store_s8_all(int8_t *const *to, const ps_vec *x, const int *used, int together)
{
    _Alignas(64) void *const at[] = {to[0], to[1], to[2], to[3]};
    const __m512i words = _mm512_packs_epi16(ps_pack_16bit(x), ps_pack_16bit(x + 2));
    ps_store_8bit_all(at, words, used, together);
}
enum { PS_BF16_WIDE = 1 };
PS_INLINE void ps_store_bf16_wide(uint16_t *p, const ps_vec *x, int count)
{
    ps_store_bf16(p, *x, count * PS_LANES);
}
/* Two vectors of 16-bit results make a line, which goes past the caches; p is aligned to it. */
enum { PS_16BIT_STREAM = 2 };
PS_INLINE void ps_stream_halves(uint16_t *p, __m256i low, __m256i high)
{
    const __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    _mm512_stream_si512((void *)p, line);
}
PS_INLINE void ps_stream_bf16(uint16_t *p, const ps_vec *x)
{
    ps_stream_halves(p, ps_to_bf16(x[0]), ps_to_bf16(x[1]));
}
PS_INLINE void ps_stream_f16(uint16_t *p, const ps_vec *x)
{
    ps_stream_halves(p, ps_to_f16(x[0]), ps_to_f16(x[1]));
}
