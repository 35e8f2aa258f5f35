/* On devices: y = A^T M A of tiles, through the epilogue; follows winograd_out.h and group.h.  A
 * work-item has a tile and PS_LANES channels, which may lie apart in y. */

/* A pixel of y and its channels, through the epilogue. */
PS_INLINE void ps_winograd_put(ps_winograd g, const ps_args *args, int64_t at, ps_acc x, int64_t k,
                               int lanes, ps_activation activation)
{
    if (args->bias)
        x = ps_add(x, ps_read_apart(args->bias + k, 1, lanes));
    if (args->residual)
        x = ps_add(x, ps_read_apart(args->residual + at, g.y_channel, lanes));
    ps_activate(&x, 1, activation);
    if (args->clamp) /* in this order a NaN stays one */
        x = ps_min(ps_splat(args->clamp[1]), ps_max(ps_splat(args->clamp[0]), x));
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        if (i < lanes)
            args->y[at + i * g.y_channel] = ps_lane(x, i);
}

/* Channels k.. of y of one tile, whose first pixel is at row and col of an image at `image`. */
PS_INLINE void ps_winograd_back(ps_winograd g, const ps_args *args, const float *points,
                                int64_t image, int64_t row, int64_t col, int64_t k, int lanes,
                                ps_activation activation)
{
    const ps_filtering down = ps_filtering_down(g), across = ps_filtering_across(g);
    const int tall = ps_count_halves(g.tall), wide = ps_count_halves(g.wide);
    PS_UNROLL
    for (int half = 0; half < tall; ++half) {
        _Alignas(64) ps_vec t[2 * PS_POINTS];
        PS_UNROLL
        for (int j = 0; j < g.columns; ++j) {
            _Alignas(64) ps_vec d[PS_POINTS], some[2];
            PS_UNROLL
            for (int i = 0; i < g.rows; ++i)
                d[i] = ps_load(points + (i * g.columns + j) * g.m_point);
            ps_winograd_out(some, d, down, half);
            PS_UNROLL
            for (int i = 0; i < ps_winograd_most_of_half(g.tall); ++i)
                t[i * g.columns + j] = some[i];
        }
        PS_UNROLL
        for (int i = 0; i < ps_winograd_most_of_half(g.tall); ++i) {
            PS_UNROLL
            for (int side = 0; side < wide; ++side) {
                const int64_t p = row + (tall * i + half) * g.tall_step;
                _Alignas(64) ps_vec some[2];
                ps_winograd_out(some, t + i * g.columns, across, side);
                PS_UNROLL
                for (int j = 0; j < ps_winograd_most_of_half(g.wide); ++j) {
                    const int64_t q = col + (wide * j + side) * g.wide_step;
                    if (p < g.p && q < g.q)
                        ps_winograd_put(g, args, image + p * g.y_row + q * g.y_col + k * g.y_channel,
                                        some[j], k, lanes, activation);
                }
            }
        }
    }
}

/* Channels k0..k0+count-1 of y of tiles first..last-1, from M, which starts at the first one's. */
PS_INLINE void ps_winograd_output(ps_winograd g, const ps_args *args, const float *points,
                                  int64_t first, int64_t last, int64_t k0, int64_t count,
                                  ps_activation activation)
{
    for (int64_t tile = first; tile < last; ++tile, points += g.m_tile) {
        const int64_t row = ps_tile_start(tile / g.across % g.down, g.tall, g.tall_step);
        const int64_t col = ps_tile_start(tile % g.across, g.wide, g.wide_step);
        const int64_t image = tile / (g.across * g.down) * g.y_image;
        for (int64_t k = 0; k < count; k += PS_LANES)
            ps_winograd_back(g, args, points + k, image, row, col, k0 + k,
                             (int)ps_least(PS_LANES, count - k), activation);
    }
}
