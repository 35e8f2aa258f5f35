/* The microkernel with its factors swapped: A is packed ahead, in panels of a register tile's rows,
 * and B is x, read row by row where it lies.  Of C and B not a byte outside the used lanes is
 * touched: the last vector of a row is loaded under a mask.  All numbers are f32. */

/* acc += A * B of one step: a column of a panel of A, and a row of B.  With `hold` each vector of B
 * is loaded once: compilers prefer to load it in every FMA, twice where it crosses a line. */
PS_INLINE void ps_step_rows(ps_acc *acc, ps_tile t, const ps_b *restrict a, const ps_a *restrict b,
                            int hold)
{
    PS_RELOAD(); /* as in ps_steps */
    _Alignas(64) ps_vec bv[8];
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v)
        bv[v] = ps_used(t, v) == PS_LANES ? ps_load(b + v * PS_LANES)
                                          : ps_load_first(b + v * PS_LANES, ps_used(t, v));
    const int held = hold && t.rows > 1 ? t.vecs : 0;
    PS_UNROLL
    for (int v = 0; v < held; ++v)
        PS_SETTLE(bv[v]);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            acc[i * t.vecs + v] = ps_fma(ps_splat(a[i]), bv[v], acc[i * t.vecs + v]);
    }
}

/* acc += A * B over `length` steps: A moves by its rows, which lie side by side, B by b_k.  Where
 * `next` is not 0, each step prefetches the line so many elements after B's; t.soon as in ps_soon. */
PS_INLINE void ps_run_rows(ps_acc *acc, ps_tile t, const ps_b *restrict a, const ps_a *restrict b,
                           int64_t length, int64_t b_k, int64_t next)
{
    for (int64_t k = 0; k < length; ++k, a += t.rows, b += b_k) {
        if (next)
            __builtin_prefetch(b + next);
        if (t.soon) {
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                __builtin_prefetch(b + t.soon * b_k + v * PS_LANES);
        }
        ps_step_rows(acc, t, a, b, 0);
    }
}

/* acc += A * B over `length` steps with both where they lie: A moves by a_k, B by b_k. */
PS_INLINE void ps_run_plain(ps_acc *acc, ps_tile t, const ps_a *restrict a, const ps_b *restrict b,
                            int64_t length, int64_t a_k, int64_t b_k)
{
    for (int64_t k = 0; k < length; ++k, a += a_k, b += b_k) {
        if (t.soon) {
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                __builtin_prefetch(b + t.soon * b_k + v * PS_LANES);
        }
        PS_RELOAD(); /* as in ps_steps */
        _Alignas(64) ps_vec bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_used(t, v) == PS_LANES ? ps_load(b + v * PS_LANES)
                                              : ps_load_first(b + v * PS_LANES, ps_used(t, v));
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] =
                    ps_fma(ps_splat(a[ps_a_row(t, i)]), bv[v], acc[i * t.vecs + v]);
        }
    }
}

/* Columns whose sums with every row are formed at once, a vector of k each: at most three quarters
 * of the registers hold sums, and the rest rows of A and a column of B. */
PS_SMALL int ps_dot_columns(ps_tile t)
{
    const int most = PS_REGISTERS * 3 / 4 / t.rows;
    return most >= 8 && PS_LANES >= 8 ? 8 : most >= 4 ? 4 : most >= 1 ? most : 1;
}

/* `lanes` elements, in a register from here on if they are used more than once. */
PS_INLINE ps_vec ps_part_of(const float *restrict from, int lanes, int uses)
{
    ps_vec x = lanes == PS_LANES ? ps_load(from) : ps_load_first(from, lanes);
    if (uses > 1)
        PS_SETTLE(x);
    return x;
}

/* sums[i][j] += A * B of one step of `lanes` of k, for row i and column j: of the fewer, rows or
 * columns, all stay in registers. */
PS_INLINE void ps_step_dots(ps_vec *sums, ps_tile t, const ps_a *restrict a, const ps_b *restrict b,
                            int64_t b_col, int columns, int lanes)
{
    PS_RELOAD(); /* as in ps_steps */
    const int by_rows = t.rows < columns;
    const int outer = by_rows ? columns : t.rows, inner = by_rows ? t.rows : columns;
    _Alignas(64) ps_vec held[8];
    PS_UNROLL
    for (int i = 0; i < inner; ++i)
        held[i] = ps_part_of(by_rows ? a + ps_a_row(t, i) : b + i * b_col, lanes, outer);
    PS_UNROLL
    for (int j = 0; j < outer; ++j) {
        const ps_vec x = ps_part_of(by_rows ? b + j * b_col : a + ps_a_row(t, j), lanes, inner);
        PS_UNROLL
        for (int i = 0; i < inner; ++i) {
            ps_vec *const sum = sums + (by_rows ? i * columns + j : j * columns + i);
            *sum = ps_fma(held[i], x, *sum);
        }
    }
}

/* dots[i * pitch + j], whose lanes add up to A * B of row i and column j, over `length` steps. */
PS_INLINE void ps_dot_block(ps_vec *dots, int pitch, ps_tile t, const ps_a *restrict a,
                            const ps_b *restrict b, int64_t length, int64_t b_col, int columns)
{
    _Alignas(64) ps_vec sums[PS_REGISTERS];
    const int rest = (int)(length % PS_LANES);
    PS_UNROLL
    for (int i = 0; i < t.rows * columns; ++i)
        sums[i] = ps_zero();
    int64_t k = 0;
    for (; k < length - rest; k += PS_LANES)
        ps_step_dots(sums, t, a + k, b + k, b_col, columns, PS_LANES);
    if (rest)
        ps_step_dots(sums, t, a + k, b + k, b_col, columns, rest);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int j = 0; j < columns; ++j)
            dots[i * pitch + j] = sums[i * columns + j];
    }
}

/* Lane i is the sum of the lanes of x[i * step]; those from `count` on are 0. */
PS_INLINE ps_vec ps_lane_sums(const ps_vec *x, int step, int count)
{
    _Alignas(64) ps_vec sums[PS_LANES];
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        sums[i] = i < count ? x[i * step] : ps_zero();
    ps_transpose(sums);
    PS_UNROLL
    for (int i = 1; i < PS_LANES; ++i)
        sums[0] = ps_add(sums[0], sums[i]);
    return sums[0];
}

/* acc += A * B over `length` steps with both where they lie, k along the lanes: B's columns are
 * b_col apart, and the steps of k neighbours in A as in B. */
PS_INLINE void ps_run_dots(ps_acc *acc, ps_tile t, const ps_a *restrict a, const ps_b *restrict b,
                           int64_t length, int64_t b_col)
{
    const int pitch = t.vecs * PS_LANES, count = pitch - PS_LANES + t.lanes;
    const int columns = ps_dot_columns(t), rest = count % columns;
    _Alignas(64) ps_vec dots[PS_REGISTERS * PS_LANES]; /* a tile has fewer vectors than there are registers */
    for (int j = 0; j < count - rest; j += columns)
        ps_dot_block(dots + j, pitch, t, a, b + j * b_col, length, b_col, columns);
    if (rest)
        ps_dot_block(dots + count - rest, pitch, t, a, b + (count - rest) * b_col, length, b_col,
                     rest);
    if (count == 1) { /* a lane of each row: added for several rows at once */
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            const int rows = t.rows - first < PS_LANES ? t.rows - first : PS_LANES;
            _Alignas(64) float sums[PS_LANES];
            ps_store(sums, ps_lane_sums(dots + first * pitch, pitch, rows));
            PS_UNROLL
            for (int i = 0; i < rows; ++i)
                acc[first + i] = ps_add(acc[first + i], ps_load_first(sums + i, 1));
        }
        return;
    }
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i) {
        const ps_vec *const row = dots + i / t.vecs * pitch + i % t.vecs * PS_LANES;
        acc[i] = ps_add(acc[i], ps_lane_sums(row, 1, ps_used(t, i % t.vecs)));
    }
}

/* `count` taps of a filter, and how many elements further in B each reads. */
typedef struct {
    int64_t count, step;
} ps_tap;

/* The same with all taps in each step: A has a column of its panel for every one. */
PS_INLINE void ps_run_taps(ps_acc *acc, ps_tile t, const ps_b *restrict a, const ps_a *restrict b,
                           int64_t length, int64_t b_k, const ps_tap *taps)
{
    for (int64_t k = 0; k < length; ++k, b += b_k)
        for (int64_t r = 0; r < taps[0].count; ++r)
            for (int64_t s = 0; s < taps[1].count; ++s, a += t.rows)
                ps_step_rows(acc, t, a, b + r * taps[0].step + s * taps[1].step, 1);
}

PS_INLINE void ps_add_bias_rows(ps_acc *acc, ps_tile t, const ps_bias *bias)
{
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        const ps_vec x = ps_splat(bias[i]);
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], x);
    }
}

/* ps_end where a bias belongs to a row of C. */
PS_INLINE void ps_end_rows(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    if (!e) {
        ps_end(acc, t, c, 0);
        return;
    }
    ps_settle(acc, t);
    ps_times_alpha(acc, t, e->alpha);
    if (e->bias)
        ps_add_bias_rows(acc, t, e->bias);
    ps_epilogue rest = *e;
    rest.bias = 0;
    rest.alpha = 1;
    ps_end(acc, t, c, &rest);
}

/* Columns that are positions of an image, of which C lacks some: of every `pitch` it has the first
 * `columns`, without gaps.  The first column is position `phase` of a row. */
typedef struct {
    int64_t pitch, columns, phase;
} ps_gaps;

/* A bit for each of the first n lanes. */
PS_SCALAR uint32_t ps_first_lanes(int64_t n) { return n > 0 ? (UINT32_C(1) << n) - 1 : 0; }

/* Bits of the lanes of vector v that C has. */
PS_INLINE uint32_t ps_pixel_lanes(ps_gaps g, ps_tile t, int v)
{
    uint32_t lanes = 0;
    for (int64_t row = -((g.phase + v * PS_LANES) % g.pitch); row < PS_LANES; row += g.pitch)
        lanes |= ps_first_lanes(ps_least(row + g.columns, PS_LANES)) & ~ps_first_lanes(row);
    return lanes & ps_first_lanes(ps_used(t, v));
}

/* Elements of C between the first column and the first one of vector v that C has. */
PS_INLINE int64_t ps_pixels_before(ps_gaps g, int v)
{
    const int64_t at = g.phase + v * PS_LANES;
    return at / g.pitch * g.columns + ps_least(at % g.pitch, g.columns) -
           ps_least(g.phase, g.columns);
}

/* acc += a tile of memory shaped like C. */
PS_INLINE void ps_accumulate_gaps(ps_acc *acc, ps_tile t, const ps_y *c, ps_gaps g)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const uint32_t lanes = ps_pixel_lanes(g, t, v);
        const ps_y *const from = c + ps_pixels_before(g, v);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            ps_acc *const sum = &acc[i * t.vecs + v];
            *sum = ps_add(*sum, ps_load_lanes(from + ps_c_row(t, i), lanes));
        }
    }
}

/* ps_begin of such a tile. */
PS_INLINE void ps_begin_gaps(ps_acc *acc, ps_tile t, const ps_y *c, int accumulate, ps_gaps g)
{
    ps_begin(acc, t, c, 0);
    if (accumulate)
        ps_accumulate_gaps(acc, t, c, g);
}

/* ps_end_rows of such a tile. */
PS_INLINE void ps_end_gaps(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e, ps_gaps g)
{
    ps_settle(acc, t);
    if (e && e->bias)
        ps_add_bias_rows(acc, t, e->bias);
    if (e && e->residual)
        ps_accumulate_gaps(acc, t, e->residual, g);
    if (e)
        ps_activate(acc, t.rows * t.vecs, e->activation);
    if (e && e->clamp)
        ps_clamp(acc, t, e->clamp);
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const uint32_t lanes = ps_pixel_lanes(g, t, v);
        ps_y *const to = c + ps_pixels_before(g, v);
        if (lanes == ps_first_lanes(PS_LANES)) {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                ps_store(to + ps_c_row(t, i), acc[i * t.vecs + v]);
        } else {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                ps_store_lanes(to + ps_c_row(t, i), acc[i * t.vecs + v], lanes);
        }
    }
}

/* An image of `height` rows of `width` pixels, x_row elements apart, as a row of positions: position
 * j is pixel j % pitch - left of row j / pitch - top, and 0 outside of them. */
typedef struct {
    int64_t height, width, top, left, pitch, x_row;
} ps_image;

/* By vectors: of short rows, copies that compilers call or repeat strings for take longer. */
PS_INLINE void ps_copy_pixels(ps_a *restrict box, const ps_x *restrict x, int64_t count)
{
    const int64_t rest = count % PS_LANES;
    for (int64_t i = 0; i < count - rest; i += PS_LANES) {
        ps_vec pixels = ps_load(x + i);
        PS_SETTLE(pixels);
        ps_store(box + i, pixels);
    }
    if (rest)
        ps_store_first(box + count - rest, ps_load_first(x + count - rest, (int)rest), (int)rest);
}

/* The same with zeros. */
PS_INLINE void ps_fill_zeros(ps_a *restrict box, int64_t count)
{
    for (int64_t i = 0; i < count; i += PS_LANES)
        ps_store_first(box + i, ps_zero(), (int)ps_least(count - i, PS_LANES));
}

/* Its positions first .. first + count - 1. */
PS_INLINE void ps_copy_image(ps_a *restrict box, const ps_x *restrict x, ps_image image,
                             int64_t first, int64_t count)
{
    int64_t row = first / image.pitch - image.top, at = first % image.pitch;
    for (int64_t done = 0; done < count; ++row, at = 0) {
        const int64_t length = ps_least(image.pitch - at, count - done);
        const int64_t before = ps_most(0, ps_least(length, image.left - at));
        const int64_t wide = row >= 0 && row < image.height ? image.left + image.width - at : 0;
        const int64_t end = ps_most(before, ps_least(length, wide));
        ps_fill_zeros(box + done, before);
        if (before < end)
            ps_copy_pixels(box + done + before, x + row * image.x_row + at + before - image.left,
                           end - before);
        ps_fill_zeros(box + done + end, length - end);
        done += length;
    }
}

/* The pixels of an image, row.step rows and row.x_channel elements apart, one behind the other. */
PS_INLINE void ps_gather_image(ps_a *restrict box, const ps_x *restrict x, ps_row row)
{
    for (int64_t i = 0; i < row.pixels; ++i)
        for (int64_t j = 0; j < row.channels; ++j)
            box[i * row.box_pixel + j] = x[i * row.step * row.x_pixel + j * row.x_channel];
}
