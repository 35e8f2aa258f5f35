/* B in blocks along k, each with a scale a column and, where w has them, a zero point:
 *
 *   B[k][j] = (number[k][j] - zero[block][j]) * scale[block][j]
 *
 * In w a column's block lies together: scale, zero, numbers, the lowest bits first.  A block of a
 * panel holds the scales of all columns, their zeros, and the numbers, PS_W_STEPS of k a column. */

/* Bytes of a column's block of so many numbers. */
PS_SCALAR int64_t ps_block_bytes(int64_t numbers)
{
    return (int64_t)sizeof(float) * (1 + PS_W_ZEROS) + numbers * PS_W_BITS / 8;
}

/* Ask for the scales and zeros of a block before its numbers, which are read first: memory is fast for
 * those who read in order. */
PS_INLINE void ps_ask_for_heads(const ps_b *b, int64_t columns)
{
    PS_UNROLL
    for (int64_t at = 0; at < columns * 4 * (1 + PS_W_ZEROS); at += 64)
        __builtin_prefetch(b + at, 0, 3);
}

/* A block of the panel of `width` columns from the blocks of `real` columns of w, which lie
 * `apart` bytes from each other; zeros for the others. */
PS_SCALAR void ps_pack_block(ps_b *restrict to, const uint8_t *restrict w, int64_t apart,
                             int64_t numbers, int64_t width, int64_t real)
{
    enum { HEADS = 1 + PS_W_ZEROS, BYTES = PS_W_STEPS * PS_W_BITS / 8 };
    __builtin_memset(to, 0, (unsigned long)(width * ps_block_bytes(numbers)));
    for (int64_t j = 0; j < width && j < real; ++j, w += apart) {
        for (int64_t i = 0; i < HEADS; ++i)
            __builtin_memcpy(to + (i * width + j) * 4, w + i * 4, 4);
        const uint8_t *from = w + HEADS * 4;
        ps_b *at = to + HEADS * 4 * width + j * BYTES;
        for (int64_t k = 0; k < numbers; k += PS_W_STEPS, from += BYTES, at += width * BYTES)
            ps_w_pack(at, from);
    }
}
