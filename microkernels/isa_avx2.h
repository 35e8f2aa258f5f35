/* AVX2 with FMA: 8 lanes of f32, 16 vector registers, ragged vectors by a mask of sign bits. */
#include <immintrin.h>

#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET

PS_SCALAR int ps_has_avx2(void) { return ps_cpu_has(PS_CPU_AVX2); }
#define PS_CPU_OK ps_has_avx2

/* A vector that is in a register here, whatever is done with it later. */
#define PS_SETTLE(x) __asm__ volatile("" : "+x"(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND PS_SETTLE

enum { PS_LANES = 8, PS_REGISTERS = 16 };
typedef __m256 ps_vec;

PS_INLINE ps_vec ps_zero(void) { return _mm256_setzero_ps(); }
PS_INLINE ps_vec ps_splat(float x) { return _mm256_set1_ps(x); }
PS_INLINE ps_vec ps_load(const float *p) { return _mm256_loadu_ps(p); }
PS_INLINE void ps_store(float *p, ps_vec x) { _mm256_storeu_ps(p, x); }
/* Past the caches; p is aligned to a vector.  ps_fence orders these stores before later ones. */
PS_INLINE void ps_stream(float *p, ps_vec x) { _mm256_stream_ps(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) { _mm_sfence(); }
PS_INLINE __m256i ps_first(int lanes)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    if (__builtin_constant_p(lanes) && lanes == 1)
        return _mm256_zextps128_ps256(_mm_load_ss(p));
    return _mm256_maskload_ps(p, ps_first(lanes));
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    return _mm256_maskload_ps(p, _mm256_andnot_si256(ps_first(from), ps_first(to)));
}
/* AMD cores take about ten cycles for a store under a mask, and one for each of its halves. */
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    __m128 part = _mm256_castps256_ps128(x);
    if (!__builtin_constant_p(lanes)) {
        _mm256_maskstore_ps(p, ps_first(lanes), x);
        return;
    }
    if (lanes & 4) {
        _mm_storeu_ps(p, part);
        part = _mm256_extractf128_ps(x, 1);
    }
    if (lanes & 2) {
        _mm_storel_pi((__m64 *)(p + (lanes & 4)), part);
        part = _mm_movehl_ps(part, part);
    }
    if (lanes & 1)
        _mm_store_ss(p + (lanes & 6), part);
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return _mm256_fmadd_ps(x, y, z); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return _mm256_add_ps(x, y); }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return _mm256_mul_ps(x, y); }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return _mm256_max_ps(x, y); }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return _mm256_min_ps(x, y); }
/* Lane i of the result is lane i ^ d of x; d is 1, 2 or 4. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    return d == 1   ? _mm256_permute_ps(x, 0xb1)
           : d == 2 ? _mm256_permute_ps(x, 0x4e)
                    : _mm256_permute2f128_ps(x, x, 0x01);
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(*x, *y, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(*x, *y, 0xdd));
    *x = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
    *y = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}
/* Lanes of x from n on, then the first n of y, 0 < n < 8. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    _Alignas(64) float lanes[16];
    _mm256_storeu_ps(lanes, x), _mm256_storeu_ps(lanes + 8, y);
    return _mm256_loadu_ps(lanes + n);
}
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    _Alignas(64) ps_vec y[8];
    PS_UNROLL
    for (int i = 0; i < 8; i += 4) { /* 4x4 blocks inside 128-bit lanes */
        const ps_vec a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
        const ps_vec c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
        const ps_vec d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm256_shuffle_ps(a, c, 0x44);
        y[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        y[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    PS_UNROLL
    for (int i = 0; i < 4; ++i) { /* then the 2x2 of 128-bit lanes */
        x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
}
