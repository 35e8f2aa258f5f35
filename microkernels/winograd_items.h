/* On devices: tiles of pixels into V, filters into U; follows winograd_in.h and group.h.  A work-item
 * has a tile and PS_LANES channels, which may lie apart in x. */

/* V of one tile, whose first pixel lies at row and col of an image, for `lanes` channels. */
PS_INLINE void ps_winograd_tile(ps_winograd g, const ps_x *image, float *v, int64_t row, int64_t col,
                                int lanes)
{
    const ps_filtering down = ps_filtering_down(g), across = ps_filtering_across(g);
    PS_UNROLL
    for (int half = 0; half < ps_count_halves(g.rows); ++half) {
        _Alignas(64) ps_vec t[PS_POINTS / 2 * PS_POINTS];
        PS_UNROLL
        for (int j = 0; j < g.columns; ++j) {
            const int64_t x_col = col + j * g.wide_step;
            const int across = x_col >= 0 && x_col < g.width;
            _Alignas(64) ps_vec d[PS_POINTS], some[PS_POINTS / 2];
            PS_UNROLL
            for (int i = 0; i < g.rows; ++i) {
                const int64_t x_row = row + i * g.tall_step, at = x_row * g.x_row + x_col * g.x_col;
                const int real = across && x_row >= 0 && x_row < g.height;
                d[i] = real ? ps_read_apart(image + at, g.x_channel, lanes) : ps_zero();
            }
            ps_winograd_in(some, d, down, half);
            PS_UNROLL
            for (int i = 0; i < ps_winograd_most_of_half(g.rows); ++i)
                if (i < ps_winograd_half(g.rows, half))
                    t[i * g.columns + j] = some[i];
        }
        PS_UNROLL
        for (int i = 0; i < ps_winograd_most_of_half(g.rows); ++i)
            if (i < ps_winograd_half(g.rows, half))
                ps_winograd_across(v + ps_winograd_row(down, half, i) * g.columns * g.v_point,
                                   g.v_point, t + i * g.columns, across);
    }
}

/* V of tiles first..last-1, counted over images, rows and columns; v points to the first one's. */
PS_INLINE void ps_winograd_input(ps_winograd g, const ps_x *x, float *v, int64_t first,
                                 int64_t last)
{
    for (int64_t tile = first; tile < last; ++tile, v += g.v_tile) {
        const int64_t p = ps_tile_start(tile / g.across % g.down, g.tall, g.tall_step);
        const int64_t q = ps_tile_start(tile % g.across, g.wide, g.wide_step);
        const int64_t row = p * g.tall_stride - g.top, col = q * g.wide_stride - g.left;
        const int64_t image = tile / (g.across * g.down) * g.x_image;
        for (int64_t c = 0; c < g.channels; c += PS_LANES)
            ps_winograd_tile(g, x + image + c * g.x_channel, v + c, row, col,
                             (int)ps_least(PS_LANES, g.channels - c));
    }
}

/* KCRS to [point][c][columns], zeros behind the last filter: a block and a panel are all columns. */
PS_SMALL void ps_winograd_weights(ps_winograd g, const ps_x *w, float *packed)
{
    const ps_filtering f = ps_filtering_down(g), h = ps_filtering_across(g);
    const int tall = ps_filtering_taps(f), wide = ps_filtering_taps(h);
    for (int64_t k = 0; k < g.cols; ++k)
        for (int64_t c = 0; c < g.depth; ++c)
            for (int i = 0; i < g.rows; ++i) {
                _Alignas(64) double t[PS_POINTS] = {0};
                for (int s = 0; s < wide && k < g.filters; ++s)
                    for (int r = 0; r < tall; ++r)
                        t[s] += ps_winograd_power(f, i, r) *
                                w[((k * g.depth + c) * tall + r) * wide + s];
                for (int j = 0; j < g.columns; ++j) {
                    double u = 0;
                    for (int s = 0; s < wide; ++s)
                        u += t[s] * ps_winograd_power(h, j, s);
                    u *= ps_winograd_share(f, i) * ps_winograd_share(h, j);
                    packed[((i * g.columns + j) * g.depth + c) * g.cols + k] = (float)u;
                }
            }
}
