/* AVX2 with FMA: 8 lanes of f32, 16 vector registers, ragged vectors by a mask of sign bits. */
#include <immintrin.h>

#define PS_TARGET __attribute__((target("avx2,fma")))
#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET
#define PS_CPU_OK() (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))

enum { PS_LANES = 8 };
typedef __m256 ps_vec;

PS_INLINE ps_vec ps_zero(void) { return _mm256_setzero_ps(); }
PS_INLINE ps_vec ps_splat(float x) { return _mm256_set1_ps(x); }
PS_INLINE ps_vec ps_load(const float *p) { return _mm256_loadu_ps(p); }
PS_INLINE void ps_store(float *p, ps_vec x) { _mm256_storeu_ps(p, x); }
PS_INLINE __m256i ps_first(int lanes)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    return _mm256_maskload_ps(p, ps_first(lanes));
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    _mm256_maskstore_ps(p, ps_first(lanes), x);
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return _mm256_fmadd_ps(x, y, z); }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return _mm256_add_ps(x, y); }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return _mm256_max_ps(x, y); }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return _mm256_min_ps(x, y); }
