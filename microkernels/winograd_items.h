/* On devices: tiles of pixels into V, filters into U; follows winograd_in.h and group.h.  A work-item
 * has a tile and PS_LANES channels, which may lie apart in x. */

/* V of one tile, whose first pixel lies at row and col of an image, for `lanes` channels. */
PS_INLINE void ps_winograd_tile(ps_winograd g, const ps_x *image, float *v, int64_t row, int64_t col,
                                int lanes)
{
    const int edge = g.m + 2, rows = g.m / 2 + 1;
    PS_UNROLL
    for (int half = 0; half < 2; ++half) {
        _Alignas(64) ps_vec t[3 * 6];
        PS_UNROLL
        for (int j = 0; j < edge; ++j) {
            const int across = col + j >= 0 && col + j < g.width;
            _Alignas(64) ps_vec d[6], some[3];
            PS_UNROLL
            for (int i = 0; i < edge; ++i) {
                const int real = across && row + i >= 0 && row + i < g.height;
                const int64_t at = (row + i) * g.x_row + (col + j) * g.x_col;
                d[i] = real ? ps_read_apart(image + at, g.x_channel, lanes) : ps_zero();
            }
            ps_winograd_in(some, d, g.m, half);
            PS_UNROLL
            for (int i = 0; i < rows; ++i)
                t[i * edge + j] = some[i];
        }
        PS_UNROLL
        for (int i = 0; i < rows; ++i) {
            _Alignas(64) ps_vec u[6];
            ps_winograd_in(u, t + i * edge, g.m, 0);
            ps_winograd_in(u + rows, t + i * edge, g.m, 1);
            PS_UNROLL
            for (int j = 0; j < edge; ++j)
                ps_store(v + ((half * rows + i) * edge + j) * g.v_point, u[j]);
        }
    }
}

/* V of tiles first..last-1, counted over images, rows and columns; v points to the first one's. */
PS_INLINE void ps_winograd_input(ps_winograd g, const ps_x *x, float *v, int64_t first,
                                 int64_t last)
{
    for (int64_t tile = first; tile < last; ++tile, v += g.v_tile) {
        const int64_t row = tile / g.across % g.down * g.m - g.top;
        const int64_t col = tile % g.across * g.m - g.left;
        const int64_t image = tile / (g.across * g.down) * g.x_image;
        for (int64_t c = 0; c < g.channels; c += PS_LANES)
            ps_winograd_tile(g, x + image + c * g.x_channel, v + c, row, col,
                             (int)ps_least(PS_LANES, g.channels - c));
    }
}

/* An element of G; in doubles, so that U is rounded once. */
PS_SMALL double ps_winograd_factor(int m, int i, int r)
{
    _Alignas(64) const double small[] = {1, 0, 0, 0.5, 0.5, 0.5, 0.5, -0.5, 0.5, 0, 0, 1};
    _Alignas(64) const double large[] = {
        1.0 / 4,  0,        0,       -1.0 / 6, -1.0 / 6,  -1.0 / 6, -1.0 / 6, 1.0 / 6, -1.0 / 6,
        1.0 / 24, 1.0 / 12, 1.0 / 6, 1.0 / 24, -1.0 / 12, 1.0 / 6,  0,        0,       1};
    return m == 2 ? small[3 * i + r] : large[3 * i + r];
}

/* KCRS to [point][c][columns], zeros behind the last filter: a block and a panel are all columns. */
PS_SMALL void ps_winograd_weights(ps_winograd g, const ps_x *w, float *packed)
{
    const int edge = g.m + 2;
    for (int64_t k = 0; k < g.cols; ++k)
        for (int64_t c = 0; c < g.channels; ++c)
            for (int i = 0; i < edge; ++i) {
                _Alignas(64) double t[3] = {0, 0, 0};
                for (int s = 0; s < 3 && k < g.filters; ++s)
                    for (int r = 0; r < 3; ++r)
                        t[s] += ps_winograd_factor(g.m, i, r) *
                                w[(k * g.channels + c) * 9 + 3 * r + s];
                for (int j = 0; j < edge; ++j) {
                    double u = 0;
                    for (int s = 0; s < 3; ++s)
                        u += t[s] * ps_winograd_factor(g.m, j, s);
                    packed[((i * edge + j) * g.channels + c) * g.cols + k] = (float)u;
                }
            }
}
