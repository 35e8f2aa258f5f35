/* The runs of brgemm.h on AVX-512: where up to half a vector of columns is left, the last vector of
 * a tile is multiplied in its lower half alone.  That takes half the time on CPUs whose vectors of
 * 16 lanes take two turns, and no longer on others. */
enum { PS_HALF = PS_LANES / 2 };

PS_INLINE __m256 ps_lower(ps_vec x) { return _mm512_castps512_ps256(x); }

/* A in all lanes of half a vector. */
PS_INLINE __m256 ps_half_word(const ps_a *p)
{
    return _Generic(p, const float *: _mm256_set1_ps(*(const float *)(const void *)p),
                    default: ps_lower(ps_word(p)));
}

PS_INLINE ps_acc ps_dot_half(__m256 a, ps_wide b, ps_acc sum)
{
    return _mm512_castps256_ps512(_mm256_fmadd_ps(a, ps_lower(b), ps_lower(sum)));
}

PS_INLINE void ps_half_run(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                           const ps_b *restrict b, int64_t length, int64_t a_k)
{
    const int whole = t.vecs - 1;
    if (t.diagonal || t.lanes > PS_HALF) {
        ps_run(acc, t, rows, a, b, length, a_k);
        return;
    }
    for (int64_t k = 0; k < length; ++k, a += a_k, b += t.vecs * PS_LANES) {
        PS_RELOAD();
        PS_UNROLL
        for (int line = 0; line < t.ahead; ++line)
            __builtin_prefetch((const char *)b + t.next + 64 * line, 0, 2);
        if (t.soon)
            ps_soon(t, a + t.soon * a_k);
        _Alignas(64) ps_wide bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_panel(b + v * PS_LANES);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const ps_a *restrict row = a + ps_a_row(t, i);
            ps_acc *sums = acc + i * t.vecs;
            if (!(rows >> i & 1))
                continue;
            PS_UNROLL
            for (int v = 0; v < whole; ++v)
                sums[v] = ps_dot(ps_word(row), bv[v], sums[v]);
            sums[whole] = ps_dot_half(whole ? ps_lower(ps_word(row)) : ps_half_word(row), bv[whole],
                                      sums[whole]);
        }
    }
}
/* What follows is written against this name. */
#define ps_run ps_half_run
