/* Copying f32 factors into panels: `deep` steps of `width` columns each, a multiple of PS_LANES, of
 * which the first `real` exist; the others are zero. */

/* Columns are neighbours in w, steps lie `step` apart. */
static PS_KERNEL __attribute__((unused)) void
ps_panel_rows(float *restrict packed, const float *restrict w, int64_t step, int64_t deep,
              int64_t width, int64_t real)
{
    for (int64_t k = 0; k < deep; ++k, packed += width, w += step)
        for (int64_t j = 0; j < width; j += PS_LANES) {
            const int there = (int)ps_most(0, ps_least(real - j, PS_LANES));
            ps_store(packed + j, there == PS_LANES ? ps_load(w + j)
                                 : there           ? ps_load_first(w + j, there)
                                                   : ps_zero());
        }
}

/* The same for `columns` columns at once: their panels have `tile` columns each, the last one fewer,
 * and `reduction` elements below every column; the first step is step `at` of a panel. */
static PS_KERNEL __attribute__((unused)) void
ps_part_rows(float *restrict panels, const float *restrict w, int64_t at, int64_t step,
             int64_t deep, int64_t columns, int64_t tile, int64_t reduction)
{
    const int64_t whole = columns - columns % tile, rest = columns - whole;
    const int64_t last = ps_ceil_div(rest, PS_LANES) * PS_LANES;
    for (int64_t k = at; k < at + deep; ++k, w += step) {
        float *to = panels + k * tile;
        for (int64_t j = 0; j < whole; j += tile, to += reduction * tile)
            for (int64_t v = 0; v < tile; v += PS_LANES) {
                ps_copy_ahead(w + j + v);
                ps_store(to + v, ps_load(w + j + v));
            }
        to = panels + reduction * whole + k * last;
        for (int64_t v = 0; v < last; v += PS_LANES) {
            const int there = (int)ps_least(rest - v, PS_LANES);
            ps_store(to + v, there == PS_LANES ? ps_load(w + whole + v)
                                               : ps_load_first(w + whole + v, there));
        }
    }
}

/* Steps are neighbours in w, columns lie `step` apart: blocks of PS_LANES by PS_LANES turn over. */
static PS_KERNEL __attribute__((unused)) void
ps_panel_turned(float *restrict packed, const float *restrict w, int64_t step, int64_t deep,
                int64_t width, int64_t real)
{
    for (int64_t j = 0; j < width; j += PS_LANES)
        for (int64_t k = 0; k < deep; k += PS_LANES) {
            const int wide = (int)ps_least(deep - k, PS_LANES);
            _Alignas(64) ps_vec block[PS_LANES];
            PS_UNROLL
            for (int c = 0; c < PS_LANES; ++c) {
                const float *from = w + (j + c) * step + k;
                block[c] = j + c >= real      ? ps_zero()
                           : wide == PS_LANES ? ps_load(from)
                                              : ps_load_first(from, wide);
            }
            ps_transpose(block);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (i < wide)
                    ps_store(packed + (k + i) * width + j, block[i]);
        }
}
