/* The order of blocks along a generalised Hilbert curve. */

PS_SCALAR int64_t ps_sign(int64_t x) { return (x > 0) - (x < 0); }

/* Place number `at` of `rows` x `columns` blocks, any extents, on a curve whose places are
 * neighbours: row * columns + column.  A box has a corner and two sides, a and b, each along an
 * axis; it is halved until one line is left: across a where that is long, else into a turned
 * quarter, a half and a turned quarter (Cerveny's gilbert curve). */
PS_SCALAR int64_t ps_hilbert(int64_t at, int64_t rows, int64_t columns)
{
    const int wide = columns >= rows;
    int64_t y = 0, x = 0, ay = wide ? 0 : rows, ax = wide ? columns : 0;
    int64_t by = wide ? rows : 0, bx = wide ? 0 : columns;
    for (;;) {
        const int64_t day = ps_sign(ay), dax = ps_sign(ax), dby = ps_sign(by), dbx = ps_sign(bx);
        const int64_t w = day * ay + dax * ax, h = dby * by + dbx * bx;
        if (h == 1)
            return (y + day * at) * columns + x + dax * at;
        if (w == 1)
            return (y + dby * at) * columns + x + dbx * at;
        int64_t a2 = w / 2, b2 = h / 2; /* even where possible: both ends lie on one side then */
        if (2 * w > 3 * h) {
            a2 += a2 % 2 && w > 2;
            const int64_t first = a2 * h;
            if (at < first) {
                ay = day * a2, ax = dax * a2;
            } else {
                at -= first;
                y += day * a2, x += dax * a2;
                ay -= day * a2, ax -= dax * a2;
            }
            continue;
        }
        b2 += b2 % 2 && h > 2;
        const int64_t quarter = b2 * a2, half = w * (h - b2);
        if (at < quarter) {
            ay = dby * b2, ax = dbx * b2;
            by = day * a2, bx = dax * a2;
        } else if (at < quarter + half) {
            at -= quarter;
            y += dby * b2, x += dbx * b2;
            by -= dby * b2, bx -= dbx * b2;
        } else {
            at -= quarter + half;
            y += day * (w - 1) + dby * (b2 - 1), x += dax * (w - 1) + dbx * (b2 - 1);
            ay = -dby * b2, ax = -dbx * b2;
            by = -day * (w - a2), bx = -dax * (w - a2);
        }
    }
}
