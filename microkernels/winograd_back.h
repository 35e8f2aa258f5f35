/* Winograd's way back: y = A^T M A of tiles, through the epilogue; follows winograd_out.h. */

/* What is added to y = A^T M A, the function of that, and the bounds that cut it. */
typedef struct {
    const float *bias, *residual, *scales; /* what undoes scales of filters; null: nothing */
    ps_activation activation;
    float low, high;
} ps_winograd_end;

PS_INLINE ps_vec ps_winograd_cut(const ps_winograd_end *e, ps_vec x)
{
    ps_activate(&x, 1, e->activation);
    return ps_min(ps_splat(e->high), ps_max(ps_splat(e->low), x)); /* a NaN stays one */
}

/* Where a tile of y goes: distances, rows and columns inside y, lanes; box: without an epilogue. */
typedef struct {
    int64_t row, col, k;
    int rows, cols, lanes, box;
} ps_winograd_place;

PS_INLINE void ps_winograd_put(float *restrict y, int64_t at, ps_vec x, ps_vec bias, ps_vec scale,
                               const ps_winograd_end *e, ps_winograd_place to)
{
    if (to.box) {
        ps_store(y + at, x);
        return;
    }
    x = e->scales ? ps_fma(x, scale, bias) : ps_add(x, bias);
    if (e->residual)
        x = ps_add(x, to.lanes == PS_LANES ? ps_load(e->residual + at)
                                           : ps_load_first(e->residual + at, to.lanes));
    x = ps_winograd_cut(e, x);
    if (to.lanes == PS_LANES)
        ps_store(y + at, x);
    else
        ps_store_first(y + at, x, to.lanes);
}

/* y of one tile and PS_LANES channels: A^T M A, its rows in two halves. */
PS_INLINE void ps_winograd_back(ps_winograd g, float *restrict y, int64_t at,
                                const float *restrict points, const ps_winograd_end *e,
                                ps_winograd_place to)
{
    const ps_filtering down = ps_filtering_down(g), across = ps_filtering_across(g);
    const int tall = ps_halves(g.tall), wide = ps_halves(g.wide);
    ps_vec bias = ps_zero(), scale = ps_zero();
    if (!to.box && e->scales) /* whole vectors have some */
        scale = ps_load(e->scales + to.k);
    if (!to.box && e->bias)
        bias = to.lanes == PS_LANES ? ps_load(e->bias + to.k)
                                    : ps_load_first(e->bias + to.k, to.lanes);
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
            const int row = tall * i + half;
            if (row >= to.rows)
                continue;
            PS_UNROLL
            for (int side = 0; side < wide; ++side) {
                _Alignas(64) ps_vec some[2];
                ps_winograd_out(some, t + i * g.columns, across, side);
                PS_UNROLL
                for (int j = 0; j < ps_winograd_most_of_half(g.wide); ++j)
                    if (wide * j + side < to.cols)
                        ps_winograd_put(y, at + row * to.row + (wide * j + side) * to.col,
                                        some[j], bias, scale, e, to);
            }
        }
        PS_RELOAD();
    }
}

/* Where the plane of y begins that has a tile. */
PS_SMALL int64_t ps_winograd_image(ps_winograd g, int64_t tile)
{
    const int64_t image = ps_tile_image(g, tile);
    return image / g.images * g.y_image + image % g.images * g.y_plane;
}

/* Tiles of y whose channels are neighbours. */
PS_INLINE void ps_winograd_along(ps_winograd g, const ps_winograd_end *e, float *restrict y,
                                 const float *restrict points, int64_t first, int64_t last,
                                 int64_t k0, int64_t count)
{
    for (int64_t tile = first; tile < last; ++tile, points += g.m_tile) {
        const int64_t p = ps_tile_row(g, tile), q = ps_tile_col(g, tile);
        const int64_t at = ps_winograd_image(g, tile) + p * g.y_row + q * g.y_col + k0;
        ps_winograd_place to = {g.y_row * g.tall_step, g.y_col * g.wide_step, 0, g.tall, g.wide,
                                PS_LANES, 0};
        const int rows = (int)ps_least(g.tall, ps_ceil_div(g.p - p, g.tall_step));
        const int cols = (int)ps_least(g.wide, ps_ceil_div(g.q - q, g.wide_step));
        int64_t k = 0;
        if (rows == g.tall && cols == g.wide)
            for (; k + PS_LANES <= count; k += PS_LANES) {
                to.k = k0 + k;
                ps_winograd_back(g, y, at + k, points + k, e, to);
            }
        to.rows = rows;
        to.cols = cols;
        for (; k < count; k += PS_LANES) {
            to.k = k0 + k;
            to.lanes = (int)ps_least(PS_LANES, count - k);
            ps_winograd_back(g, y, at + k, points + k, e, to);
        }
    }
}

/* Up to PS_LANES pixels and channels of a box leave it turned, through the epilogue. */
PS_INLINE void ps_winograd_leave(float *restrict y, int64_t at, int64_t y_channel,
                                 const float *restrict box, int wide, int deep, int64_t k,
                                 const ps_winograd_end *e)
{
    _Alignas(64) ps_vec x[PS_LANES];
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = i < wide ? ps_load(box + i * PS_LANES) : ps_zero();
    ps_transpose(x);
    PS_UNROLL
    for (int c = 0; c < PS_LANES; ++c) {
        if (c >= deep)
            continue;
        if (e->scales)
            x[c] = ps_mul(x[c], ps_splat(e->scales[k + c]));
        if (e->bias)
            x[c] = ps_add(x[c], ps_splat(e->bias[k + c]));
        if (e->residual)
            x[c] = ps_add(x[c], ps_load_first(e->residual + at + c * y_channel, wide));
        ps_store_first(y + at + c * y_channel, ps_winograd_cut(e, x[c]), wide);
    }
}

/* A row of y, from a box of `wide` pixels and PS_LANES channels of it, of which `deep` exist.  Each
 * `piece` of neighbours lies wide_step behind the one before; pixels from `end` on are left out. */
PS_INLINE void ps_winograd_leave_line(ps_winograd g, float *restrict y, int64_t at, int64_t end,
                                      const float *restrict box, int64_t wide, int64_t piece,
                                      int deep, int64_t k, const ps_winograd_end *e)
{
    for (int64_t j = 0, col = 0; j < wide; j += piece, col += g.wide_step) {
        const int64_t real = ps_least(piece, end - col);
        for (int64_t i = 0; i < real; i += PS_LANES)
            ps_winograd_leave(y, at + (col + i) * g.y_col, g.y_channel, box + (j + i) * PS_LANES,
                              (int)ps_least(PS_LANES, real - i), deep, k, e);
    }
}

/* Tiles of y whose channels lie apart: a run of tiles goes through a box. */
PS_INLINE void ps_winograd_apart(ps_winograd g, const ps_winograd_end *e, float *restrict y,
                                 const float *restrict points, int64_t first, int64_t last,
                                 int64_t k0, int64_t count)
{
    enum { WIDE = 4 * PS_RUN };
    _Alignas(64) float box[4 * WIDE * PS_LANES];
    for (int64_t tile = first, run; tile < last; tile += run, points += run * g.m_tile) {
        run = ps_winograd_run(g, tile, last);
        const int64_t side = ps_winograd_side(g, run), wide = run * g.wide;
        const ps_winograd_place to = {WIDE * PS_LANES, side * PS_LANES, 0, g.tall, g.wide, PS_LANES, 1};
        const int64_t p = ps_tile_row(g, tile), q = ps_tile_col(g, tile);
        const int64_t rows = ps_least(g.tall, ps_ceil_div(g.p - p, g.tall_step));
        const int64_t at = ps_winograd_image(g, tile) + p * g.y_row + q * g.y_col;
        for (int64_t k = 0; k < count; k += PS_LANES) {
            for (int64_t j = 0; j < run; ++j)
                ps_winograd_back(g, box, ps_tile_start(j, g.wide, side) * PS_LANES,
                                 points + j * g.m_tile + k, e, to);
            for (int64_t i = 0; i < rows; ++i)
                ps_winograd_leave_line(g, y, at + i * g.tall_step * g.y_row + (k0 + k) * g.y_channel,
                                       g.q - q, box + i * WIDE * PS_LANES, wide,
                                       side == g.wide_step ? wide : side,
                                       (int)ps_least(PS_LANES, count - k), k0 + k, e);
        }
    }
}

/* Channels k0..k0+count-1 of y of tiles first..last-1, from M, which starts at the first one's. */
PS_INLINE void ps_winograd_output(ps_winograd g, const ps_args *args, const float *restrict points,
                                  int64_t first, int64_t last, int64_t k0, int64_t count,
                                  ps_activation activation)
{
    const float far = __builtin_inff();
    const float *scales = PS_WINOGRAD_SCALED ? (const float *)(args->packed + ps_winograd_elements(g)) : 0;
    const ps_winograd_end e = {args->bias, args->residual, scales, activation, args->clamp ? args->clamp[0] : -far,
                               args->clamp ? args->clamp[1] : far};
    if (g.y_channel == 1)
        ps_winograd_along(g, &e, args->y, points, first, last, k0, count);
    else
        ps_winograd_apart(g, &e, args->y, points, first, last, k0, count);
}
