/* A filter over rows of an image: rows of C are image rows, vectors run along the pixels of a row,
 * and weights are scalars of one channel.  A is x, read where it lies.
 *
 *   C[i][j] += A[(i * step + r * apart) * row + j * every + s * across] * B[r * b_row + s]
 *
 * for 0 <= r < taps and 0 <= s < columns.  Elements of A are loaded once for all of their rows of C,
 * and once for all columns of taps of a call.  All numbers are f32, every field is a compile-time
 * constant. */
typedef struct {
    int taps, apart; /* of a column of the filter, and rows of A from one to the next */
    int step;        /* rows of A from one row of C to the next */
    int every;       /* elements of A from one column of C to the next: 1 or 2 */
    int across;      /* elements of A from one column of taps to the next */
    int top, bottom; /* rows of A inside the image: the first, and one past the last */
    int64_t row;     /* elements from one row of A to the next */
    int64_t b_row;   /* likewise of B, from one of the taps to the next */
} ps_window;

/* A vector from element `at` of a row on; those from `left` to before `right` are real, the others
 * count as zero and are not read. */
PS_INLINE ps_vec ps_pixels(const ps_a *row, int at, int left, int right)
{
    const int from = left > at ? left - at : 0;
    const int to = right < at + PS_LANES ? right - at : PS_LANES;
    if (from >= to)
        return ps_zero();
    return from == 0 && to == PS_LANES ? ps_load(row + at) : ps_load_part(row + at, from, to);
}

/* The elements under vector v of C, `every` apart: x[0] from the first one on, x[1] from the next. */
PS_INLINE void ps_phases(ps_vec *x, ps_window f, const ps_a *row, int v, int left, int right)
{
    const int at = v * f.every * PS_LANES;
    x[0] = x[1] = ps_pixels(row, at, left, right);
    if (f.every == 2) {
        x[1] = ps_pixels(row, at + PS_LANES, left, right);
        ps_even_odd(&x[0], &x[1]);
    }
}

/* acc += `columns` columns of taps.  Of a row of A, elements from `left` to before `right` are read,
 * and those around them count as zero. */
PS_INLINE void ps_run_window(ps_acc *acc, ps_tile t, ps_window f, const ps_a *restrict a,
                             const ps_b *restrict b, int columns, int left, int right)
{
    const int width = f.every * PS_LANES, reach = (columns - 1) * f.across;
    PS_RELOAD(); /* loads are not carried from call to call */
    PS_UNROLL
    for (int y = f.top; y < f.bottom; ++y) {
        const ps_a *restrict row = a + y * f.row;
        _Alignas(64) ps_vec x[2], next[2];
        ps_phases(next, f, row, 0, left, right);
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            x[0] = next[0], x[1] = next[1];
            if (v + 1 < t.vecs || reach >= f.every)
                ps_phases(next, f, row, v + 1, left, right);
            if (left >= (v + 1) * width + reach || right <= v * width)
                continue;
            PS_UNROLL
            for (int s = 0; s < columns; ++s) {
                const int phase = s * f.across % f.every, shift = s * f.across / f.every;
                const ps_vec pixels = shift ? ps_shift(x[phase], next[phase], shift) : x[phase];
                PS_UNROLL
                for (int r = 0; r < f.taps; ++r) {
                    const int i = (y - r * f.apart) / f.step;
                    if (y < r * f.apart || (y - r * f.apart) % f.step || i >= t.rows)
                        continue;
                    const ps_vec by = ps_splat(b[r * f.b_row + s]);
                    acc[i * t.vecs + v] = ps_fma(by, pixels, acc[i * t.vecs + v]);
                }
            }
        }
    }
}

/* ps_end of a tile of one channel, whose bias is that of every element. */
PS_INLINE void ps_end_channel(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_settle(acc, t);
    if (e->bias) {
        const ps_vec bias = ps_splat(*e->bias);
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            acc[i] = ps_add(acc[i], bias);
    }
    ps_epilogue rest = *e;
    rest.bias = 0;
    ps_end(acc, t, c, &rest);
}
