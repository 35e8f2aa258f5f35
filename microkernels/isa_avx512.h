/* AVX-512: 16 lanes of f32, 32 vector registers, a mask register for ragged vectors. */
#include <immintrin.h>

#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET

PS_SCALAR int ps_has_avx512(void) { return ps_cpu_has(PS_CPU_AVX512); }
#define PS_CPU_OK ps_has_avx512

/* A vector that is in a register here, whatever is done with it later. */
#define PS_SETTLE(x) __asm__ volatile("" : "+v"(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND PS_SETTLE

enum { PS_LANES = 16, PS_REGISTERS = 32 };
typedef __m512 ps_vec;

PS_INLINE ps_vec ps_zero(void) { return _mm512_setzero_ps(); }
PS_INLINE ps_vec ps_splat(float x) { return _mm512_set1_ps(x); }
PS_INLINE ps_vec ps_load(const float *p) { return _mm512_loadu_ps(p); }
PS_INLINE void ps_store(float *p, ps_vec x) { _mm512_storeu_ps(p, x); }
/* Past the caches; p is aligned to a vector.  ps_fence orders these stores before later ones. */
PS_INLINE void ps_stream(float *p, ps_vec x) { _mm512_stream_ps(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) { _mm_sfence(); }
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1u), p);
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << to) - (1u << from)), p);
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1u), x);
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return _mm512_fmadd_ps(x, y, z); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return _mm512_add_ps(x, y); }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return _mm512_mul_ps(x, y); }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return _mm512_max_ps(x, y); }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return _mm512_min_ps(x, y); }
/* Lane i of the result is lane i ^ d of x; d is 1, 2, 4 or 8. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    return d == 1   ? _mm512_permute_ps(x, 0xb1)
           : d == 2 ? _mm512_permute_ps(x, 0x4e)
           : d == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                    : _mm512_shuffle_f32x4(x, x, 0x4e);
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    const ps_vec a = *x, b = *y;
    *x = _mm512_permutex2var_ps(a, even, b), *y = _mm512_permutex2var_ps(a, odd, b);
}
/* Lanes of x from n on, then the first n of y, 0 < n < 16. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    const __m512i a = _mm512_castps_si512(x), b = _mm512_castps_si512(y);
#define PS_SHIFT(n)                                                                                \
    case n:                                                                                        \
        return _mm512_castsi512_ps(_mm512_alignr_epi32(b, a, n));
    switch (n) {
        PS_SHIFT(1) PS_SHIFT(2) PS_SHIFT(3) PS_SHIFT(4) PS_SHIFT(5) PS_SHIFT(6) PS_SHIFT(7)
        PS_SHIFT(8) PS_SHIFT(9) PS_SHIFT(10) PS_SHIFT(11) PS_SHIFT(12) PS_SHIFT(13) PS_SHIFT(14)
    default:
        return _mm512_castsi512_ps(_mm512_alignr_epi32(b, a, 15));
    }
#undef PS_SHIFT
}
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    _Alignas(64) ps_vec y[16];
    PS_UNROLL
    for (int i = 0; i < 16; i += 4) { /* 4x4 blocks inside 128-bit lanes */
        const ps_vec a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        const ps_vec c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]);
        const ps_vec d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm512_shuffle_ps(a, c, 0x44);
        y[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        y[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        y[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    PS_UNROLL
    for (int i = 0; i < 4; ++i) { /* then the 4x4 of 128-bit lanes */
        const ps_vec a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
        const ps_vec b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
        const ps_vec c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
        const ps_vec d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
        x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}
