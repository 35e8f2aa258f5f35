/* Tiles of pixels into V, filters into U; follows winograd_in.h. */

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
PS_INLINE void ps_winograd_tile(float *restrict v, int64_t v_point, const float *restrict x,
                                int64_t at, int64_t row, int64_t col, int m, const ps_inside *part)
{
    const int edge = m + 2, rows = m / 2 + 1;
    PS_UNROLL
    for (int half = 0; half < 2; ++half) {
        _Alignas(64) ps_vec t[3 * 6];
        PS_UNROLL
        for (int j = 0; j < edge; ++j) {
            _Alignas(64) ps_vec d[6], some[3];
            PS_UNROLL
            for (int i = 0; i < edge; ++i)
                d[i] = ps_winograd_load(x, at + i * row + j * col, i, j, part);
            ps_winograd_in(some, d, m, half);
            PS_UNROLL
            for (int i = 0; i < rows; ++i)
                t[i * edge + j] = some[i];
        }
        PS_UNROLL
        for (int i = 0; i < rows; ++i) {
            _Alignas(64) ps_vec u[6];
            ps_winograd_in(u, t + i * edge, m, 0);
            ps_winograd_in(u + rows, t + i * edge, m, 1);
            PS_UNROLL
            for (int j = 0; j < edge; ++j)
                ps_store(v + ((half * rows + i) * edge + j) * v_point, u[j]);
        }
        /* The halves share loads; keeping those in registers would push other values out. */
        __asm__ volatile("" : : : "memory");
    }
}

PS_SCALAR unsigned ps_bits(int64_t first, int64_t limit, int count)
{
    unsigned found = 0;
    for (int i = 0; i < count; ++i)
        found |= (unsigned)(first + i >= 0 && first + i < limit) << i;
    return found;
}

/* Tiles from `tile` on, `last` at most, that lie in one row of an image: PS_RUN at most. */
PS_SCALAR int64_t ps_winograd_run(int64_t across, int64_t tile, int64_t last)
{
    return ps_least(ps_least(PS_RUN, last - tile), across - tile % across);
}

/* The first pixel of a tile: of y, or with padding of x. */
PS_SCALAR int64_t ps_tile_row(ps_winograd g, int64_t tile)
{
    return tile / g.across % g.down * g.m;
}

PS_SCALAR int64_t ps_tile_col(ps_winograd g, int64_t tile) { return tile % g.across * g.m; }

PS_SCALAR int64_t ps_tile_image(ps_winograd g, int64_t tile)
{
    return tile / (g.across * g.down);
}

/* V of tiles whose channels are neighbours in x. */
PS_INLINE void ps_winograd_direct(ps_winograd g, const float *restrict x, float *restrict v,
                                  int64_t first, int64_t last)
{
    const unsigned all = (1u << (g.m + 2)) - 1;
    for (int64_t tile = first; tile < last; ++tile, v += g.v_tile) {
        const int64_t row = ps_tile_row(g, tile) - g.top, col = ps_tile_col(g, tile) - g.left;
        const int64_t at = ps_tile_image(g, tile) * g.x_image + row * g.x_row + col * g.x_col;
        ps_inside part = {ps_bits(row, g.height, g.m + 2), ps_bits(col, g.width, g.m + 2),
                          PS_LANES};
        int64_t c = 0;
        if (part.rows == all && part.cols == all)
            for (; c + PS_LANES <= g.channels; c += PS_LANES)
                ps_winograd_tile(v + c, g.v_point, x, at + c, g.x_row, g.x_col, g.m, 0);
        for (; c < g.channels; c += PS_LANES) {
            part.lanes = (int)ps_least(PS_LANES, g.channels - c);
            ps_winograd_tile(v + c, g.v_point, x, at + c, g.x_row, g.x_col, g.m, &part);
        }
    }
}

/* V of tiles whose channels lie apart: rows of a run of tiles are turned into a box first. */
PS_INLINE void ps_winograd_turned(ps_winograd g, const float *restrict x, float *restrict v,
                                  int64_t first, int64_t last)
{
    enum { WIDE = 4 * PS_RUN + 2 };
    _Alignas(64) float box[6 * WIDE * PS_LANES] = {0};
    for (int64_t tile = first, run; tile < last; tile += run, v += run * g.v_tile) {
        run = ps_winograd_run(g.across, tile, last);
        const int64_t row = ps_tile_row(g, tile) - g.top, col = ps_tile_col(g, tile) - g.left;
        const int64_t wide = run * g.m + 2, low = ps_least(ps_most(0, -col), wide);
        const int64_t high = ps_most(low, ps_least(wide, g.width - col));
        const float *image = x + ps_tile_image(g, tile) * g.x_image;
        for (int64_t c = 0; c < g.channels; c += PS_LANES) {
            for (int i = 0; i < g.m + 2; ++i) {
                float *to = box + i * WIDE * PS_LANES;
                const int real = row + i >= 0 && row + i < g.height && low < high;
                for (int64_t j = 0; j < wide; ++j)
                    if (!real || j < low || j >= high)
                        ps_store(to + j * PS_LANES, ps_zero());
                if (real)
                    ps_turn(to + low * PS_LANES, PS_LANES,
                            image + c * g.x_channel + (row + i) * g.x_row + (col + low) * g.x_col,
                            g.x_channel, high - low, ps_least(PS_LANES, g.channels - c));
            }
            for (int64_t j = 0; j < run; ++j)
                ps_winograd_tile(v + j * g.v_tile + c, g.v_point, box, j * g.m * PS_LANES,
                                 WIDE * PS_LANES, PS_LANES, g.m, 0);
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
        ps_winograd_turned(g, x, v, first, last);
}

/* U = G w G^T of one filter, rounded once. */
PS_SCALAR void ps_winograd_filter(double *u, const float *w, int m)
{
    static const double small[] = {1, 0, 0, 0.5, 0.5, 0.5, 0.5, -0.5, 0.5, 0, 0, 1};
    static const double large[] = {
        1.0 / 4,  0,        0,       -1.0 / 6, -1.0 / 6,  -1.0 / 6, -1.0 / 6, 1.0 / 6, -1.0 / 6,
        1.0 / 24, 1.0 / 12, 1.0 / 6, 1.0 / 24, -1.0 / 12, 1.0 / 6,  0,        0,       1};
    const double *g = m == 2 ? small : large;
    const int edge = m + 2;
    _Alignas(64) double t[6 * 3];
    for (int i = 0; i < edge; ++i)
        for (int s = 0; s < 3; ++s)
            t[i * 3 + s] = g[3 * i] * w[s] + g[3 * i + 1] * w[3 + s] + g[3 * i + 2] * w[6 + s];
    for (int i = 0; i < edge; ++i)
        for (int j = 0; j < edge; ++j)
            u[i * edge + j] =
                t[3 * i] * g[3 * j] + t[3 * i + 1] * g[3 * j + 1] + t[3 * i + 2] * g[3 * j + 2];
}

/* KCRS to [block of columns][point][panel][c][columns], zeros behind the last filter. */
PS_SCALAR void ps_winograd_weights(ps_winograd g, const float *restrict w, float *restrict packed)
{
    const int64_t edge = g.m + 2, all = ps_ceil_div(g.filters, g.cols) * g.cols;
    for (int64_t k0 = 0; k0 < all; k0 += g.block) {
        const int64_t width = ps_least(g.block, all - k0);
        for (int64_t k = k0; k < k0 + width; ++k)
            for (int64_t c = 0; c < g.channels; ++c) {
                _Alignas(64) double u[6 * 6] = {0};
                if (k < g.filters)
                    ps_winograd_filter(u, w + (k * g.channels + c) * 9, g.m);
                const int64_t panel = (k - k0) / g.cols * g.cols;
                float *to = packed + panel * g.channels + c * g.cols + k - k0 - panel;
                for (int64_t t = 0; t < edge * edge; ++t)
                    to[t * g.channels * width] = (float)u[t];
            }
        packed += edge * edge * g.channels * width;
    }
}
