/* The runs of brgemm.h on Helium for 8-bit numbers: VMLADAVA adds the products of 16 bytes to one number in
 * a register of the core.  Four steps of B, loaded as four vectors (VLD4), are a vector of each of four
 * columns: so register tiles are one vector wide. */

/* Whether step k's word lies behind that of step k - 1. */
PS_INLINE int ps_touch(int64_t a_k, int width) { return a_k == PS_WORD && width == PS_WORD; }

/* Of four steps the words of a row, or `filling` if it is not null. */
PS_INLINE int8x16_t ps_four_words(const ps_a *row, const ps_wide *filling, int64_t a_k, int width)
{
    if (filling)
        return vreinterpretq_s8_s32(*filling);
    if (ps_touch(a_k, width)) {
        const int8x16_t x = vldrbq_s8((const int8_t *)row);
        return PS_FLIP ? veorq_s8(x, vdupq_n_s8(-0x80)) : x;
    }
    ps_wide x = ps_int_splat(0);
    PS_UNROLL
    for (int k = 0; k < 4; ++k)
        x[k] = (width == PS_WORD ? ps_word(row + k * a_k) : ps_word_first(row + k * a_k, width))[0];
    return vreinterpretq_s8_s32(x);
}

/* Four steps. */
PS_INLINE void ps_four_steps(int32_t (*sums)[4], ps_tile t, uint32_t rows, const ps_wide *filling,
                             const ps_a *restrict a, const ps_b *restrict b, int64_t a_k, int width)
{
    __asm__ volatile("" : : : "memory"); /* four steps load their own operands: see ps_steps */
    const int32x4x4_t columns = vld4q_s32((const int32_t *)(const void *)b);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        const int real = rows >> i & 1;
        if (!real && !filling)
            continue;
        __asm__ volatile("" : : : "memory"); /* one row at a time */
        const int8x16_t x = ps_four_words(a + ps_a_row(t, i), real ? 0 : filling, a_k, width);
        PS_UNROLL
        for (int j = 0; j < 4; ++j)
            sums[i][j] = vmladavaq_s8(sums[i][j], x, vreinterpretq_s8_s32(columns.val[j]));
    }
}

PS_INLINE void ps_byte_steps(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                             const ps_a *restrict a, const ps_b *restrict b, int64_t length,
                             int64_t a_k, int width)
{
    enum { STEP = PS_LANES * PS_WORD };
    int32_t left = (int32_t)length;
    _Alignas(64) int32_t sums[4][4];
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int j = 0; j < 4; ++j)
            sums[i][j] = acc[i][j];
    }
    for (; left >= 4; left -= 4, a += 4 * a_k, b += 4 * STEP)
        ps_four_steps(sums, t, rows, filling, a, b, a_k, width);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int j = 0; j < 4; ++j)
            acc[i][j] = sums[i][j];
    }
    ps_steps(acc, t, rows, filling, a, b, left, a_k, width);
}

PS_INLINE void ps_bytes_run(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                            const ps_b *restrict b, int64_t length, int64_t a_k)
{
    ps_byte_steps(acc, t, rows, 0, a, b, length, a_k, PS_WORD);
}

PS_INLINE void ps_bytes_run_part(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                                 const ps_b *restrict b, int64_t length, int64_t a_k, int width)
{
    ps_byte_steps(acc, t, rows, 0, a, b, length, a_k, width);
}

PS_INLINE void ps_bytes_run_filled(ps_acc *acc, ps_tile t, uint32_t rows, int32_t zero,
                                   const ps_a *restrict a, const ps_b *restrict b, int64_t length,
                                   int64_t a_k, int width)
{
    const ps_wide filling = ps_filling(zero);
    ps_byte_steps(acc, t, rows, &filling, a, b, length, a_k, width);
}

/* What follows is written against these names. */
#define ps_run ps_bytes_run
#define ps_run_part ps_bytes_run_part
#define ps_run_filled ps_bytes_run_filled
