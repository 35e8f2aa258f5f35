/* Depthwise tiles on words of four taps: a lane holds a channel's pixels of four rows of the image,
 * one above the other, and multiplies them by a column of the filter at once.  Every such word is
 * made once for all taps of its line, as in sliding.h.
 *
 *   C[i][j] += A[i * a_inner + s * step + r * pitch + j] * B[(s * columns + j) * PS_WORD + r]
 *
 * for 0 <= s < taps and 0 <= r < count, PS_WORD or fewer; B holds zeros behind them.  Rows of the
 * image before `first` and from `last` on lie in the padding, and so do pixels of a line whose bit is
 * not set: both are zeros, or `filling` if it is not null. */
typedef struct {
    int taps, count;
    int64_t step, pitch;
} ps_stack;

/* Rows of the image that lie inside, and where each of a word's four is read: of one in the padding
 * another is. */
typedef struct {
    int64_t at[PS_WORD];
    int cut;
    ps_wide keep, rest; /* of a cut word: the bytes that were read, and the others */
} ps_stack_rows;

PS_INLINE ps_wide ps_stacked(const ps_a *p, const ps_stack_rows *rows, int count, int lanes)
{
    const __m512i quarters = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i turn = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i x = _mm512_cvtepu8_epi32(ps_load_8bit(p + rows->at[0], lanes));
    if (count > 1) {
        x = _mm512_zextsi128_si512(ps_load_8bit(p + rows->at[0], lanes));
        x = _mm512_inserti32x4(x, ps_load_8bit(p + rows->at[1], lanes), 1);
        if (count > 2)
            x = _mm512_inserti32x4(x, ps_load_8bit(p + rows->at[2], lanes), 2);
        if (count > 3)
            x = _mm512_inserti32x4(x, ps_load_8bit(p + rows->at[3], lanes), 3);
        x = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(quarters, x), turn);
    }
    if (PS_FLIP)
        x = ps_int_xor(x, ps_int_splat((int32_t)((PS_FLIP & 0xff) * 0x01010101u)));
    return rows->cut ? _mm512_or_si512(_mm512_and_si512(x, rows->keep), rows->rest) : x;
}

/* All taps of a line of t.rows. */
PS_INLINE void ps_stack_line(ps_acc *acc, ps_tile t, ps_stack f, uint64_t pixels,
                             const ps_wide *filling, const ps_a *restrict a,
                             const ps_b *restrict b, const ps_stack_rows *rows)
{
    enum { HELD = 8 }; /* vectors of B that stay in registers */
    const int every = t.a_inner > f.step ? (int)(t.a_inner / f.step) : 1;
    const int span = (t.rows - 1) * every + f.taps, hold = f.taps * t.vecs <= HELD;
    _Alignas(64) ps_wide bv[HELD];
    PS_RELOAD();
    if (hold) {
        PS_UNROLL
        for (int i = 0; i < f.taps * t.vecs; ++i)
            bv[i] = ps_panel(b + i * PS_LANES * PS_WORD);
    }
    PS_UNROLL
    for (int p = 0; p < span; ++p) {
        const int real = (int)(pixels >> p & 1);
        if (!real && !filling)
            continue;
        PS_RELOAD();
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_a *at = a + p * f.step + v * PS_LANES;
            const ps_wide av = real ? ps_stacked(at, rows, f.count, ps_used(t, v)) : *filling;
            PS_UNROLL
            for (int s = 0; s < f.taps; ++s) {
                const int i = (p - s) / every, tap = s * t.vecs + v;
                if (p < s || (p - s) % every || i >= t.rows)
                    continue;
                const ps_wide w = hold ? bv[tap] : ps_panel(b + tap * PS_LANES * PS_WORD);
                acc[i * t.vecs + v] = ps_dot(av, w, acc[i * t.vecs + v]);
            }
        }
    }
}

/* The same where all of it lies in the padding. */
PS_INLINE void ps_stack_filling(ps_acc *acc, ps_tile t, ps_stack f, ps_wide filling,
                                const ps_b *restrict b)
{
    for (int s = 0; s < f.taps; ++s) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_wide w = ps_panel(b + (s * t.vecs + v) * PS_LANES * PS_WORD);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                acc[i * t.vecs + v] = ps_dot(filling, w, acc[i * t.vecs + v]);
        }
    }
}

PS_INLINE void ps_stack_over(ps_acc *acc, ps_tile t, ps_stack f, uint64_t pixels,
                             const ps_wide *filling, const ps_a *restrict a,
                             const ps_b *restrict b, int64_t first, int64_t last)
{
    const int64_t low = ps_most(first, 0), high = ps_least(last, f.count);
    _Alignas(64) ps_stack_rows rows = {.cut = 0};
    if (low == 0 && high == f.count) {
        PS_UNROLL
        for (int r = 0; r < PS_WORD; ++r)
            rows.at[r] = r * f.pitch;
        ps_stack_line(acc, t, f, pixels, filling, a, b, &rows);
    } else if (low < high) {
        const uint64_t inside = (UINT64_C(1) << 8 * high) - (UINT64_C(1) << 8 * low);
        PS_UNROLL
        for (int r = 0; r < PS_WORD; ++r)
            rows.at[r] = ps_most(low, ps_least(r, high - 1)) * f.pitch;
        rows.cut = 1;
        rows.keep = ps_int_splat((int32_t)(uint32_t)inside);
        rows.rest = filling ? _mm512_andnot_si512(rows.keep, *filling) : ps_int_splat(0);
        ps_stack_line(acc, t, f, pixels, filling, a, b, &rows);
    } else if (filling) {
        ps_stack_filling(acc, t, f, *filling, b);
    }
}

PS_INLINE void ps_slide_stacked(ps_acc *acc, ps_tile t, ps_stack f, uint64_t pixels,
                                const ps_a *restrict a, const ps_b *restrict b, int64_t first,
                                int64_t last)
{
    ps_stack_over(acc, t, f, pixels, 0, a, b, first, last);
}

/* The same where x holds `zero` in the padding, which then takes part. */
PS_INLINE void ps_slide_stacked_filled(ps_acc *acc, ps_tile t, ps_stack f, uint64_t pixels,
                                       int32_t zero, const ps_a *restrict a,
                                       const ps_b *restrict b, int64_t first, int64_t last)
{
    const ps_wide filling = ps_filling(zero);
    ps_stack_over(acc, t, f, pixels, &filling, a, b, first, last);
}
