/* Runs of depthwise tiles whose rows lie a few taps apart: neighbours read the same pixels.  Each
 * pixel is loaded, and converted, once for all of its taps.
 *
 *   C[o * wrap + i][j] += A[o * a_outer + i * a_inner + s * step + j] * B[s * columns + j]
 *
 * for 0 <= s < taps, where `step` divides a_inner.  A line has span = (wrap - 1) * a_inner / step +
 * taps pixels; bit o * span + p of `pixels` says whether pixel p of line o is real.  The others are
 * left out, or `filling` if it is not null. */
PS_INLINE void ps_slide_over(ps_acc *acc, ps_tile t, uint64_t pixels, const ps_wide *filling,
                             const ps_a *restrict a, const ps_b *restrict b, int taps,
                             int64_t step)
{
    enum { HELD = 8 }; /* vectors of B that stay in registers */
    const int wide = t.rows < t.wrap ? t.rows : t.wrap, every = (int)(t.a_inner / step);
    const int span = (wide - 1) * every + taps, lines = (t.rows + wide - 1) / wide;
    const int vectors = (t.rows + taps) * t.vecs; /* beside them pixels and a product */
    const int hold = taps * t.vecs <= HELD && (PS_REGISTERS > 8 || vectors + 2 <= PS_REGISTERS);
    _Alignas(64) ps_wide bv[HELD];
    PS_RELOAD();
    if (hold) {
        PS_UNROLL
        for (int i = 0; i < taps * t.vecs; ++i)
            bv[i] = ps_panel(b + i * PS_LANES * PS_WORD);
    }
    PS_UNROLL
    for (int o = 0; o < lines; ++o) {
        PS_UNROLL
        for (int p = 0; p < span; ++p) {
            const int real = (int)(pixels >> (o * span + p) & 1);
            if (!real && !filling)
                continue;
            const ps_a *restrict at = a + o * t.a_outer + p * step;
            _Alignas(64) ps_wide pair[2];
            PS_RELOAD();
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v) {
                if (real && ps_paired(t, v) && v % 2 == 0)
                    ps_beside_pair(at + v * PS_LANES, PS_LANES + ps_used(t, v + 1), pair);
                const ps_wide av = !real             ? *filling
                                   : ps_paired(t, v) ? pair[v % 2]
                                                     : ps_beside(at + v * PS_LANES, ps_used(t, v));
                PS_UNROLL
                for (int s = 0; s < taps; ++s) {
                    const int i = (p - s) / every, row = o * wide + i, tap = s * t.vecs + v;
                    if (p < s || (p - s) % every || i >= wide || row >= t.rows)
                        continue;
                    const ps_wide w = hold ? bv[tap] : ps_panel(b + tap * PS_LANES * PS_WORD);
                    acc[row * t.vecs + v] = ps_dot(av, w, acc[row * t.vecs + v]);
                }
            }
        }
    }
}

PS_INLINE void ps_slide(ps_acc *acc, ps_tile t, uint64_t pixels, const ps_a *restrict a,
                        const ps_b *restrict b, int taps, int64_t step)
{
    ps_slide_over(acc, t, pixels, 0, a, b, taps, step);
}

/* The same where x holds `zero` in the padding, which then takes part. */
PS_INLINE void ps_slide_filled(ps_acc *acc, ps_tile t, uint64_t pixels, int32_t zero,
                               const ps_a *restrict a, const ps_b *restrict b, int taps,
                               int64_t step)
{
    const ps_wide filling = ps_filling(zero);
    ps_slide_over(acc, t, pixels, &filling, a, b, taps, step);
}
