/* Products by B in blocks of A that is rounded to PS_X_BYTES bytes a number, by blocks along k as well:
 *
 *   A[i][k] becomes number[i][k] * step[i][block],  number = first byte + second / 256 + third / 65536
 *
 * A kernel rounds the rows of its tile, or reads a packed copy in which they are rounded: there a
 * block begins with its bytes, the first ones of all numbers first, behind which lie its step and the
 * sums of the bytes. Products of bytes are summed apart, exactly. Numbers of B are unsigned here: signed
 * ones have PS_W_MIDDLE added. */

enum { PS_W_MOST_BLOCK = 256, PS_W_MOST_ROWS = 16 };

/* Four numbers of 8 bits of each lane; of 4 bits the first four, or the second. */
PS_INLINE ps_int ps_unpack(ps_int word, int second)
{
    const ps_int halves = word >> 4 * second & ps_int_splat(0x0f0f0f0f);
    return PS_W_BITS == 8 ? word : halves;
}

/* sum + the four unsigned numbers of each lane by the four of x. */
PS_INLINE ps_int ps_add_bytes(ps_int w, ps_int x, ps_int sum)
{
    if (PS_BYTES_WHOLE || PS_W_BITS == 4)
        return ps_dot_bytes(w, x, sum);
    const ps_int low = w & ps_int_splat(0x0f0f0f0f), high = w >> 4 & ps_int_splat(0x0f0f0f0f);
    const ps_int part = ps_dot_bytes(high, x, ps_int_splat(0));
    return ps_int_add(ps_dot_bytes(low, x, sum), ps_int_shift(part, 4));
}

/* Sums of products by each byte of a row, less the zeros, as one number of steps of the first byte. */
PS_INLINE ps_vec ps_join_bytes(const ps_int *sums, int64_t apart, const int32_t *totals,
                               const float *zeros)
{
    ps_vec joined = ps_zero();
    PS_UNROLL
    for (int d = PS_X_BYTES - 1; d >= 0; --d) {
        ps_vec sum = ps_to_real(sums[d * apart]);
        if (PS_W_ZEROS) /* rounded once: both parts are exact */
            sum = ps_fma(ps_load(zeros), ps_splat(-(float)totals[d]), sum);
        joined = d < PS_X_BYTES - 1 ? ps_fma(joined, ps_splat(0x1p-8f), sum) : sum;
    }
    return joined;
}

/* acc += A * B over `length` blocks, A moving by a_k numbers a block. */
PS_INLINE void ps_run_blocks(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                             const ps_b *restrict b, int64_t length, int64_t a_k)
{
    enum { BYTES = PS_W_STEPS * PS_W_BITS / 8, WORDS = PS_W_STEPS / 4, D = PS_X_BYTES };
    const int64_t columns = t.vecs * PS_LANES;
    const int all = t.rows * t.vecs;
    _Alignas(64) int8_t numbers[PS_W_MOST_ROWS * PS_W_MOST_BLOCK * D];
    for (int64_t n = 0; n < length; ++n, a += a_k) {
        _Alignas(64) float steps[PS_W_MOST_ROWS];
        _Alignas(64) int32_t totals[PS_W_MOST_ROWS * D];
        _Alignas(64) const int8_t *from[PS_W_MOST_ROWS];
        _Alignas(64) ps_int sums[PS_W_MOST_ROWS * D];
        const float *scales = (const float *)(const void *)b;
        const float *zeros = scales + columns * PS_W_ZEROS;
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            steps[i] = 0.0f;
            from[i] = numbers + i * t.block * D;
            __builtin_memset(totals + i * D, 0, D * sizeof *totals);
            if (rows >> i & 1 && PS_ROUNDED) {
                from[i] = (const int8_t *)(const void *)(a + ps_a_row(t, i));
                __builtin_memcpy(steps + i, from[i] + t.block * D, sizeof *steps);
                __builtin_memcpy(totals + i * D, from[i] + t.block * D + sizeof *steps,
                                 D * sizeof *totals);
            } else if (rows >> i & 1) {
                steps[i] = ps_round_block(numbers + i * t.block * D, a + ps_a_row(t, i), t.block,
                                          totals + i * D);
            }
            PS_UNROLL
            for (int d = 0; d < D; ++d) {
                const ps_int none = ps_int_splat(-PS_W_MIDDLE * totals[i * D + d]);
                PS_UNROLL
                for (int v = 0; v < t.vecs; ++v)
                    sums[d * all + i * t.vecs + v] = none;
            }
        }
        ps_ask_for_heads(b, columns);
        PS_RELOAD(); /* words of rows come from memory, not out of registers */
        b = (const ps_b *)(zeros + columns);
        for (int64_t k = 0; k < t.block; k += PS_W_STEPS, b += columns * BYTES) {
            _Alignas(64) ps_int words[8];
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                words[v] = ps_int_load((const void *)(b + v * PS_LANES * BYTES), PS_LANES);
            PS_UNROLL
            for (int j = 0; j < WORDS; ++j) {
                _Alignas(64) ps_int w[8];
                PS_UNROLL
                for (int v = 0; v < t.vecs; ++v)
                    w[v] = ps_unpack(words[v], j);
                PS_UNROLL
                for (int at = 0; at < t.rows * D; ++at) { /* of row at / D the byte at % D */
                    const int i = at / D, d = at % D;
                    if (!(rows >> i & 1))
                        continue;
                    int32_t word;
                    __builtin_memcpy(&word, from[i] + d * t.block + k + 4 * j, sizeof word);
                    const ps_int x = ps_int_splat(word);
                    PS_UNROLL
                    for (int v = 0; v < t.vecs; ++v) {
                        ps_int *sum = sums + d * all + i * t.vecs + v;
                        *sum = ps_add_bytes(w[v], x, *sum);
                    }
                }
            }
        }
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_vec scale = ps_load(scales + v * PS_LANES);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                const int at = i * t.vecs + v;
                const ps_vec sum =
                    ps_join_bytes(sums + at, all, totals + i * D, zeros + v * PS_LANES);
                acc[at] = ps_fma(sum, scale * ps_splat(steps[i]), acc[at]);
            }
        }
    }
}
