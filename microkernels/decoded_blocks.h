/* Products by B in blocks, whose numbers are decoded to f32. */

/* sums += A * (numbers - zeros), of one block. */
PS_INLINE void ps_add_block(ps_acc *sums, ps_tile t, uint32_t rows, const ps_a *restrict a,
                            const ps_b *restrict b, const float *zeros)
{
    enum { BYTES = PS_W_STEPS * PS_W_BITS / 8 };
    for (int64_t k = 0; k < t.block; k += PS_W_STEPS, b += t.vecs * PS_LANES * BYTES) {
        PS_RELOAD(); /* as in ps_steps */
        _Alignas(64) ps_w_word words[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            words[v] = ps_w_load(b + v * PS_LANES * BYTES);
        PS_UNROLL
        for (int j = 0; j < PS_W_STEPS; ++j) {
            _Alignas(64) ps_vec w[8];
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v) {
                w[v] = ps_w_real(words[v], j);
                if (PS_W_ZEROS)
                    w[v] = w[v] - ps_load(zeros + v * PS_LANES);
            }
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                if (!(rows >> i & 1))
                    continue;
                const ps_wide x = ps_word(a + ps_a_row(t, i) + k + j);
                PS_UNROLL
                for (int v = 0; v < t.vecs; ++v)
                    sums[i * t.vecs + v] = ps_dot(x, w[v], sums[i * t.vecs + v]);
            }
        }
    }
}

/* acc += A * B over `length` blocks, A moving by a_k numbers a block. */
PS_INLINE void ps_run_blocks(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                             const ps_b *restrict b, int64_t length, int64_t a_k)
{
    enum { MOST = 32 };
    const int64_t columns = t.vecs * PS_LANES;
    for (int64_t n = 0; n < length; ++n, a += a_k, b += columns * ps_block_bytes(t.block)) {
        const float *scales = (const float *)(const void *)b;
        const float *zeros = scales + columns * PS_W_ZEROS;
        ps_ask_for_heads(b, columns);
        _Alignas(64) ps_acc sums[MOST];
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            sums[i] = ps_acc_zero();
        ps_add_block(sums, t, rows, a, (const ps_b *)(zeros + columns), zeros);
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_vec scale = ps_load(scales + v * PS_LANES);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                acc[i * t.vecs + v] = ps_fma(sums[i * t.vecs + v], scale, acc[i * t.vecs + v]);
        }
    }
}
