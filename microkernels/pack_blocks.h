/* Round the blocks of the pixels of a row, neighbours in x; its channels are blocks. */
PS_INLINE void ps_pack_blocks(ps_a *restrict box, const ps_x *restrict x, ps_row row, int64_t first,
                              int64_t blocks)
{
    const int64_t numbers = row.x_channel;
    const int64_t pixels = ps_least(row.pixels, row.limit - first);
    x += first * row.x_pixel;
    for (int64_t i = 0; i < pixels; ++i, x += row.x_pixel, box += row.box_pixel)
        for (int64_t n = 0; n < blocks; ++n) {
            int8_t *to = (int8_t *)(void *)(box + n * numbers);
            _Alignas(64) int32_t totals[PS_X_BYTES];
            const float step = ps_round_block(to, x + n * numbers, numbers, totals);
            to += PS_X_BYTES * numbers;
            __builtin_memcpy(to, &step, sizeof step);
            __builtin_memcpy(to + sizeof step, totals, sizeof totals);
        }
}
