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

/* Steps are neighbours in w, columns lie `step` apart: blocks of PS_LANES by PS_LANES turn over. */
static PS_KERNEL __attribute__((unused)) void
ps_panel_turned(float *restrict packed, const float *restrict w, int64_t step, int64_t deep,
                int64_t width, int64_t real)
{
    for (int64_t j = 0; j < width; j += PS_LANES)
        for (int64_t k = 0; k < deep; k += PS_LANES) {
            const int wide = (int)ps_least(deep - k, PS_LANES);
            ps_vec block[PS_LANES];
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
