/* Copying bf16 into words of two steps of the reduction, where these lie in rows. */

/* A step of the reduction, or two, of `width` channels. */
PS_INLINE void ps_pair_up(ps_a *restrict to, const ps_x *restrict even, const ps_x *restrict odd,
                          int64_t width)
{
    ps_copy_ahead(even);
    if (odd)
        ps_copy_ahead(odd);
    for (int64_t c = 0; c < width; c += PS_LANES) {
        const int lanes = (int)ps_least(width - c, PS_LANES);
        ps_pair(to + 2 * c, even + c, odd ? odd + c : 0, lanes, lanes);
    }
}

/* A row of the box: pixels are steps of the reduction, which has words of two of them; each panel
 * has `panel` channels, neighbours in x. x points at step 0, or is null for padding. */
PS_INLINE void ps_pack_pairs(ps_a *restrict box, const ps_x *restrict x, ps_row row, int64_t first,
                             int64_t channels)
{
    const int64_t real = x ? ps_least(row.pixels, row.limit - first) : 0;
    for (int64_t k = 0; k < row.pixels; k += 2, box += 2 * row.box_pixel) {
        const ps_x *even = k < real ? x + (first + k) * row.x_pixel : 0;
        const ps_x *odd = k + 1 < real ? even + row.x_pixel : 0;
        ps_a *panel = box;
        int64_t c = 0;
        for (; even && c + row.panel <= channels; c += row.panel, panel += row.panel_size)
            ps_pair_up(panel, even + c, odd ? odd + c : 0, row.panel);
        if (even && c < channels)
            ps_pair_up(panel, even + c, odd ? odd + c : 0, channels - c);
        for (; !even && c < channels; c += row.panel, panel += row.panel_size)
            for (int64_t i = 0; i < 2 * row.panel; ++i)
                panel[i] = 0;
    }
}

/* A panel of `width` columns, a multiple of PS_LANES, of which the first `real` exist: `deep` steps,
 * `step` apart in w, where columns are neighbours. */
static PS_KERNEL __attribute__((unused)) void
ps_panel_pairs(ps_b *restrict packed, const uint16_t *restrict w, int64_t step, int64_t deep,
               int64_t width, int64_t real)
{
    for (int64_t k = 0; k < deep; k += 2, w += 2 * step, packed += 2 * width)
        for (int64_t j = 0; j < width; j += PS_LANES) {
            const int there = (int)ps_most(0, ps_least(real - j, PS_LANES));
            ps_pair(packed + 2 * j, w + j, k + 1 < deep ? w + step + j : 0, there, PS_LANES);
        }
}

/* The same where steps are neighbours in w and columns lie `step` apart: blocks of words turn
 * over. */
static PS_KERNEL __attribute__((unused)) void
ps_panel_turned_pairs(ps_b *restrict packed, const uint16_t *restrict w, int64_t step, int64_t deep,
                      int64_t width, int64_t real)
{
    for (int64_t j = 0; j < width; j += PS_LANES)
        for (int64_t k = 0; k < deep; k += 2 * PS_LANES) {
            const int64_t there = ps_least(deep - k, 2 * PS_LANES);
            _Alignas(64) ps_vec block[PS_LANES];
            PS_UNROLL
            for (int c = 0; c < PS_LANES; ++c) {
                const uint16_t *from = w + (j + c) * step + k;
                block[c] = ps_zero();
                if (j + c < real && there == 2 * PS_LANES)
                    __builtin_memcpy(&block[c], from, sizeof block[c]);
                else if (j + c < real)
                    __builtin_memcpy(&block[c], from, 2 * (unsigned)there);
            }
            ps_transpose(block);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (2 * i < there) {
                    ps_b *to = packed + (k + 2 * i) * width + 2 * j;
                    __builtin_memcpy(to, &block[i], sizeof block[i]);
                }
        }
}

/* As ps_panel_pairs, for two of the `deep` steps, k and the next one, and for `columns` columns:
 * their panels have `tile` columns each, the last one fewer, and `reduction` elements below every
 * column; these are steps of tap `at`. w points at step k. */
PS_INLINE void ps_part_pair(ps_b *restrict panels, const uint16_t *restrict w, int64_t at,
                            int64_t step, int64_t deep, int64_t k, int64_t columns, int64_t tile,
                            int64_t reduction)
{
    const uint16_t *odd = k + 1 < deep ? w + step : 0;
    const int64_t word = (deep + 1) / 2 * at + k / 2;
    for (int64_t j = 0; j < columns; j += tile) {
        const int64_t real = ps_least(columns - j, tile);
        const int64_t width = ps_ceil_div(real, PS_LANES) * PS_LANES;
        ps_b *to = panels + reduction * j + 2 * width * word;
        for (int64_t v = 0; v < width; v += PS_LANES) {
            const int there = (int)ps_least(real - v, PS_LANES);
            ps_pair(to + 2 * v, w + j + v, odd ? odd + j + v : 0, there, PS_LANES);
        }
    }
}
