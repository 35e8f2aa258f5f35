/* Tiles of pixels into V, filters into U; follows winograd_in.h, and winograd_f32.h or winograd_f16.h. */

/* Pixels of a tile that lie inside an image: rows and columns as bits, lanes of channels. */
typedef struct {
    unsigned rows, cols;
    int lanes;
} ps_inside;

PS_INLINE ps_vec ps_winograd_load(const float *x, int64_t at, int i, int j, const ps_inside *part)
{
    if (!part)
        return ps_load(x + at);
    if (!(part->rows >> i & part->cols >> j & 1u))
        return ps_zero();
    return part->lanes == PS_LANES ? ps_load(x + at) : ps_load_first(x + at, part->lanes);
}

/* V of one tile and PS_LANES channels.  x + at is the tile's first pixel, which may lie outside of
 * the image; without `part` all of it is inside. */
PS_INLINE void ps_winograd_tile(ps_winograd g, float *restrict v, const float *restrict x,
                                int64_t at, int64_t row, int64_t col, const ps_inside *part)
{
    const ps_filtering down = ps_filtering_down(g), across = ps_filtering_across(g);
    PS_UNROLL
    for (int half = 0; half < ps_halves(g.rows); ++half) {
        _Alignas(64) ps_vec t[PS_POINTS / 2 * PS_POINTS];
        PS_UNROLL
        for (int j = 0; j < g.columns; ++j) {
            _Alignas(64) ps_vec d[PS_POINTS], some[PS_POINTS / 2];
            PS_UNROLL
            for (int i = 0; i < g.rows; ++i)
                d[i] = ps_winograd_load(x, at + i * row + j * col, i, j, part);
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
        /* The halves share loads; keeping those in registers would push other values out. */
        PS_RELOAD();
    }
}

PS_SCALAR unsigned ps_bits(int64_t first, int64_t limit, int count, int step)
{
    unsigned found = 0;
    for (int i = 0; i < count; ++i)
        found |= (unsigned)(first + i * step >= 0 && first + i * step < limit) << i;
    return found;
}

/* Pixels of x between the first ones of neighbouring tiles, and those that both read. */
PS_SMALL int64_t ps_tile_pitch(ps_winograd g) { return g.wide * g.wide_stride; }

PS_SMALL int64_t ps_tile_overlap(ps_winograd g) { return g.columns - ps_tile_pitch(g); }

/* Tiles that are turned together, at most: whole groups of those that lie side by side, or a part of
 * one; those of one pixel across are many. */
PS_SMALL int64_t ps_winograd_most(ps_winograd g)
{
    const int64_t step = g.wide_step, fit = PS_BOX / g.rows, most = g.wide == 1 ? 4 * PS_RUN : PS_RUN;
    const int64_t groups = ps_least(most / step, (fit / step - ps_tile_overlap(g)) / ps_tile_pitch(g));
    return groups > 0 ? groups * step : ps_least(most, fit / g.columns);
}

/* Tiles from `tile` on, `last` at most, that lie in one row of an image, to be turned together: whole
 * groups, or a part of one. */
PS_SCALAR int64_t ps_winograd_run(ps_winograd g, int64_t tile, int64_t last)
{
    const int64_t step = g.wide_step, col = tile % g.across;
    const int64_t run = ps_least(ps_least(ps_winograd_most(g), last - tile), g.across - col);
    return col % step == 0 && run >= step ? run / step * step : ps_least(run, step - col % step);
}

/* How many neighbours a run has of those that lie side by side. */
PS_SMALL int64_t ps_winograd_side(ps_winograd g, int64_t run)
{
    return run % g.wide_step == 0 ? g.wide_step : run;
}

/* Pixels of x along a row of a run. */
PS_SMALL int64_t ps_winograd_span(ps_winograd g, int64_t run)
{
    const int64_t side = ps_winograd_side(g, run);
    return (run / side * ps_tile_pitch(g) + ps_tile_overlap(g)) * side;
}

/* The first pixel of a tile of y. */
PS_SCALAR int64_t ps_tile_row(ps_winograd g, int64_t tile)
{
    return ps_tile_start(tile / g.across % g.down, g.tall, g.tall_step);
}

PS_SCALAR int64_t ps_tile_col(ps_winograd g, int64_t tile)
{
    return ps_tile_start(tile % g.across, g.wide, g.wide_step);
}

PS_SCALAR int64_t ps_tile_image(ps_winograd g, int64_t tile)
{
    return tile / (g.across * g.down);
}

/* V of a tile whose channels are neighbours in x, those of one plane. */
PS_INLINE void ps_winograd_channels(ps_winograd g, const float *restrict x, float *restrict v,
                                    int64_t at, ps_inside part)
{
    const unsigned all_rows = (1u << g.rows) - 1, all_cols = (1u << g.columns) - 1;
    const int64_t x_row = g.x_row * g.tall_step, x_col = g.x_col * g.wide_step;
    int64_t c = 0;
    if (part.rows == all_rows && part.cols == all_cols)
        for (; c + PS_LANES <= g.channels; c += PS_LANES)
            ps_winograd_tile(g, v + c, x, at + c, x_row, x_col, 0);
    for (; c < g.channels; c += PS_LANES) {
        part.lanes = (int)ps_least(PS_LANES, g.channels - c);
        ps_winograd_tile(g, v + c, x, at + c, x_row, x_col, &part);
    }
}

/* V of tiles whose channels are neighbours in x. */
PS_INLINE void ps_winograd_direct(ps_winograd g, const float *restrict x, float *restrict v,
                                  int64_t first, int64_t last)
{
    for (int64_t tile = first; tile < last; ++tile, v += g.v_tile) {
        const int64_t row = ps_tile_row(g, tile) * g.tall_stride - g.top;
        const int64_t col = ps_tile_col(g, tile) * g.wide_stride - g.left;
        const unsigned rows = ps_bits(row, g.height, g.rows, g.tall_step);
        const unsigned cols = ps_bits(col, g.width, g.columns, g.wide_step);
        for (int tap = 0; tap < g.planes; ++tap) {
            const int64_t plane = ps_winograd_plane(g, ps_tile_image(g, tile), tap);
            const ps_inside part = {plane < 0 ? 0 : rows, cols, PS_LANES};
            ps_winograd_channels(g, x, v + tap * g.channels,
                                 plane + row * g.x_row + col * g.x_col, part);
        }
    }
}

/* A row of a box: `wide` pixels of a row of x from col on, turned; zeros outside of it, or without
 * one.  Each `piece` of neighbours lies wide_step behind the one before. */
PS_INLINE void ps_winograd_line(ps_winograd g, float *restrict to, const float *restrict row,
                                int64_t col, int64_t wide, int64_t piece, int64_t channels)
{
    for (int64_t j = 0; j < wide; j += piece, col += g.wide_step, to += piece * PS_LANES) {
        const int64_t low = ps_least(ps_most(0, -col), piece);
        const int64_t high = ps_most(low, ps_least(piece, g.width - col));
        for (int64_t i = 0; i < piece; ++i)
            if (!row || i < low || i >= high)
                ps_store(to + i * PS_LANES, ps_zero());
        if (row && low < high)
            ps_turn(to + low * PS_LANES, PS_LANES, row + (col + low) * g.x_col, g.x_channel,
                    high - low, channels);
    }
}

/* V of a run of tiles whose channels lie apart: rows are turned into a box first, in which pixels of a
 * tile are `side` apart.  Without an image all pixels are 0. */
PS_INLINE void ps_winograd_turned(ps_winograd g, const float *restrict image, float *restrict v,
                                  int64_t tile, int64_t run)
{
    _Alignas(64) float box[PS_BOX * PS_LANES] = {0};
    const int64_t line = ps_winograd_span(g, ps_winograd_most(g)) * PS_LANES;
    const int64_t row = ps_tile_row(g, tile) * g.tall_stride - g.top;
    const int64_t col = ps_tile_col(g, tile) * g.wide_stride - g.left;
    const int64_t side = ps_winograd_side(g, run), wide = ps_winograd_span(g, run);
    for (int64_t c = 0; c < g.channels; c += PS_LANES) {
        for (int i = 0; i < g.rows; ++i) {
            const int64_t y = row + i * g.tall_step;
            const int real = image && y >= 0 && y < g.height;
            ps_winograd_line(g, box + i * line, real ? image + c * g.x_channel + y * g.x_row : 0,
                             col, wide, side == g.wide_step ? wide : side,
                             ps_least(PS_LANES, g.channels - c));
        }
        for (int64_t j = 0; j < run; ++j)
            ps_winograd_tile(g, v + j * g.v_tile + c, box,
                             ps_tile_start(j, ps_tile_pitch(g), side) * PS_LANES, line,
                             side * PS_LANES, 0);
    }
}

/* V of tiles whose channels lie apart. */
PS_INLINE void ps_winograd_apart_x(ps_winograd g, const float *restrict x, float *restrict v,
                                   int64_t first, int64_t last)
{
    for (int64_t tile = first, run; tile < last; tile += run, v += run * g.v_tile) {
        run = ps_winograd_run(g, tile, last);
        for (int tap = 0; tap < g.planes; ++tap) {
            const int64_t plane = ps_winograd_plane(g, ps_tile_image(g, tile), tap);
            ps_winograd_turned(g, plane < 0 ? 0 : x + plane, v + tap * g.channels, tile, run);
        }
    }
}

/* V of tiles first..last-1, counted over images, rows and columns; v points to the first one's. */
PS_INLINE void ps_winograd_input(ps_winograd g, const float *restrict x, float *restrict v,
                                 int64_t first, int64_t last)
{
    if (g.x_channel == 1)
        ps_winograd_direct(g, x, v, first, last);
    else
        ps_winograd_apart_x(g, x, v, first, last);
}

/* G w G^T of one filter; `down` and `across` are the powers of points for its rows and columns. */
PS_SCALAR void ps_winograd_filter(ps_winograd g, double *u, const float *w, const double *down,
                                  const double *across)
{
    const ps_filtering f = ps_filtering_down(g), h = ps_filtering_across(g);
    const int tall = ps_filtering_taps(f), wide = ps_filtering_taps(h);
    for (int i = 0; i < g.rows; ++i) {
        _Alignas(64) double t[PS_POINTS] = {0};
        for (int s = 0; s < wide; ++s)
            for (int r = 0; r < tall; ++r)
                t[s] += down[i * tall + r] * w[r * wide + s];
        for (int j = 0; j < g.columns; ++j) {
            double sum = 0;
            for (int s = 0; s < wide; ++s)
                sum += t[s] * across[j * wide + s];
            u[i * g.columns + j] = sum * ps_winograd_share(f, i) * ps_winograd_share(h, j);
        }
    }
}

/* Where w has the taps of a filter's step: planes of a channel are neighbours there. */
PS_SMALL int64_t ps_winograd_taps(ps_winograd g, int64_t k, int64_t step)
{
    const int64_t channels = g.depth / g.planes;
    return (k * channels + step % channels) * g.planes + step / channels;
}

PS_SCALAR void ps_winograd_powers(double *powers, ps_filtering f)
{
    const int taps = ps_filtering_taps(f);
    for (int j = 0; j < f.points; ++j)
        for (int tap = 0; tap < taps; ++tap)
            powers[j * taps + tap] = ps_winograd_power(f, j, tap);
}

/* Columns of U: filters up to whole panels. */
PS_SMALL int64_t ps_winograd_filters(ps_winograd g)
{
    return ps_ceil_div(g.filters, g.cols) * g.cols;
}

/* Elements of U. */
PS_SMALL int64_t ps_winograd_elements(ps_winograd g)
{
    return g.rows * g.columns * g.depth * ps_winograd_filters(g);
}

/* The largest size of a point of a filter, over its channels. */
PS_SCALAR double ps_winograd_largest(ps_winograd g, const float *w, int64_t k, const double *down,
                                     const double *across)
{
    const int taps = ps_filtering_taps(ps_filtering_down(g)) * ps_filtering_taps(ps_filtering_across(g));
    double most = 0.0;
    for (int64_t c = 0; c < g.depth; ++c) {
        _Alignas(64) double u[PS_POINTS * PS_POINTS];
        ps_winograd_filter(g, u, w + ps_winograd_taps(g, k, c) * taps, down, across);
        for (int t = 0; t < g.rows * g.columns; ++t)
            most = u[t] > most ? u[t] : -u[t] > most ? -u[t] : most;
    }
    return most;
}

/* The power of two that brings a size between 2^7 and 2^8. */
PS_SMALL float ps_winograd_scale(float most)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &most, sizeof bits);
    const int up = 7 + 127 - (int)(bits >> 23);
    bits = (uint32_t)(127 + (up > 126 ? 126 : up)) << 23;
    __builtin_memcpy(&most, &bits, sizeof bits);
    return most;
}

/* KCRS to [block of columns][point][panel][c][columns], zeros behind the last filter.  Where filters
 * are scaled, what undoes it follows, for each column. */
PS_SCALAR void ps_winograd_weights(ps_winograd g, const float *restrict w, ps_b *restrict packed)
{
    const ps_filtering f = ps_filtering_down(g), h = ps_filtering_across(g);
    const int taps = ps_filtering_taps(f) * ps_filtering_taps(h), points = g.rows * g.columns;
    const int64_t all = ps_winograd_filters(g);
    _Alignas(64) double down[PS_POINTS * PS_POINTS], across[PS_POINTS * PS_POINTS];
    ps_winograd_powers(down, f);
    ps_winograd_powers(across, h);
    float *const scales = (float *)(packed + ps_winograd_elements(g));
    for (int64_t k0 = 0; k0 < all; k0 += g.block) {
        const int64_t width = ps_least(g.block, all - k0);
        for (int64_t k = k0; k < k0 + width; ++k) {
            float scale = 1.0f;
            if (PS_WINOGRAD_SCALED) {
                if (k < g.filters)
                    scale = ps_winograd_scale((float)ps_winograd_largest(g, w, k, down, across));
                scales[k] = 1.0f / scale;
            }
            for (int64_t c = 0; c < g.depth; ++c) {
                _Alignas(64) double u[PS_POINTS * PS_POINTS] = {0};
                if (k < g.filters)
                    ps_winograd_filter(g, u, w + ps_winograd_taps(g, k, c) * taps, down, across);
                const int64_t panel = (k - k0) / g.cols * g.cols;
                ps_b *to = packed + panel * g.depth + c * g.cols + k - k0 - panel;
                for (int64_t t = 0; t < points; ++t)
                    to[t * g.depth * width] = ps_winograd_rounded(u[t] * scale);
            }
        }
        packed += points * g.depth * width;
    }
}
