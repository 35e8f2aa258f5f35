/* Winograd's minimal filtering around a batch of GEMMs (Lavin and Gray, 2016), along both axes.
 *
 *   V = B^T x B for every tile of pixels, U = G w G^T for every pair of channels,
 *   M[t] = V[t] U[t] for each of the points t, and y = A^T M A
 *
 * F(m, r) along an axis, m pixels of y by r taps, takes m + r - 1 pixels of x to as many points: the
 * first of 0, 1, -1, 2, -2, 1/2, -1/2, and infinity, the last one.  One tap multiplies each pixel as
 * it is, and nothing is transformed.  With a stride of 2 the pixels of even places, which meet even
 * taps alone, are filtered by those, and the others by odd ones: their points follow one another, and
 * y is the sum of both.  Channels lie along the lanes.  A tile of vectors exceeds the registers, so it
 * is transformed in halves of its rows of points, each of which reads what it needs again. */

enum {
    PS_RUN = 8,      /* tiles of an image row that are turned together, at most */
    PS_BOX = 8 * 36, /* pixels of such tiles: 18 KiB in L1 */
    PS_POINTS = 12   /* along an axis, at most */
};

/* A problem and the distances in its buffers, in elements; a constant that the compiler sees. */
typedef struct {
    int tall, wide;                /* pixels of y down and across a tile */
    int rows, columns;             /* points down and across a tile */
    int tall_step, wide_step;      /* from one pixel of a tile to the next: dilation */
    int tall_stride, wide_stride;  /* pixels of x from one of y to the next: 1 or 2 */
    int64_t across, down;          /* tiles of an image */
    int64_t height, width, channels; /* of x */
    int64_t top, left;             /* padding */
    int64_t depth;                 /* steps of a sum: channels of a group, those of each plane */
    int planes, plane_stride, plane_step; /* of x in a sum; from one of y, and of a sum, to the next */
    int64_t front, deep, images;   /* planes of padding, of an image of x and of one of y */
    int64_t p, q, filters;         /* height, width and channels of y */
    int64_t x_image, x_plane, x_row, x_col, x_channel;
    int64_t y_image, y_plane, y_row, y_col, y_channel;
    int64_t v_point, v_tile;       /* V and M: from point to point, from tile to tile */
    int64_t m_point, m_tile;
    int64_t block, cols;           /* columns of U: of a block, of a panel that kernels read */
} ps_winograd;

/* F along an axis: pixels of y, points, and the stride. */
typedef struct {
    int outputs, points, stride;
} ps_filtering;

PS_SMALL ps_filtering ps_filtering_down(ps_winograd g)
{
    const ps_filtering f = {g.tall, g.rows, g.tall_stride};
    return f;
}

PS_SMALL ps_filtering ps_filtering_across(ps_winograd g)
{
    const ps_filtering f = {g.wide, g.columns, g.wide_stride};
    return f;
}

/* Taps of a filter along an axis. */
PS_SMALL int ps_filtering_taps(ps_filtering f) { return f.points - f.stride * (f.outputs - 1); }

/* In how many halves so many points, or pixels of y, are, how many a half has, and at most: loops
 * that are unrolled have a constant end. */
PS_SMALL int ps_halves(int count) { return count == 1 ? 1 : 2; }

PS_SMALL int ps_winograd_half(int count, int half) { return (count + 1 - half) / 2; }

PS_SMALL int ps_winograd_most_of_half(int count) { return (count + 1) / 2; }

/* The filtering of the even pixels of a stride of 2, or of the odd ones. */
PS_SMALL ps_filtering ps_filtering_part(ps_filtering f, int odd)
{
    const ps_filtering part = {f.outputs, ps_winograd_half(f.points, odd), 1};
    return part;
}

/* Which point is number i of a half: a point and its negative share sums. */
PS_SMALL int ps_winograd_row(ps_filtering f, int half, int i)
{
    if (f.points == 8 && f.stride == 1)
        return half ? 3 + i : i == 3 ? 7 : i;
    return half * ps_winograd_most_of_half(f.points) + i;
}

/* Row j of G is this share of the powers of point j: with one tap, 1. */
PS_SMALL double ps_winograd_share(ps_filtering f, int j)
{
    if (f.stride == 2) {
        const int even = ps_winograd_most_of_half(f.points), odd = j >= even;
        f = ps_filtering_part(f, odd);
        j -= odd * even;
    }
    const int points = f.points;
    if (j == points - 1 || points == f.outputs)
        return 1.0;
    if (points == 3)
        return j ? 1.0 : -1.0;
    if (points == 5)
        return j == 0 ? 1.0 / 2 : j == 1 ? -1.0 / 2 : j == 2 ? -1.0 / 6 : 1.0 / 6;
    if (j == 0)
        return points == 6 ? 1.0 / 4 : -1.0;
    if (points == 4)
        return 1.0 / 2;
    if (j < 3)
        return points == 6 ? -1.0 / 6 : -2.0 / 9;
    if (j < 5)
        return points == 6 ? 1.0 / 24 : 1.0 / 90;
    return 32.0 / 45;
}

PS_SMALL double ps_winograd_point(int j)
{
    const double size = j == 0 ? 0.0 : j < 3 ? 1.0 : j < 5 ? 2.0 : 0.5;
    return j % 2 ? size : -size;
}

/* The power of point j that belongs to a tap: of infinity only the last one counts.  Sums of such
 * powers times taps are doubles, of which U takes a share and rounds once. */
PS_SMALL double ps_winograd_power(ps_filtering f, int j, int tap)
{
    if (f.stride == 2) {
        const int even = ps_winograd_most_of_half(f.points), odd = j >= even;
        if (tap % 2 != odd)
            return 0.0;
        f = ps_filtering_part(f, odd);
        j -= odd * even;
        tap /= 2;
    }
    if (j == f.points - 1)
        return tap == ps_filtering_taps(f) - 1 ? 1.0 : 0.0;
    double power = 1.0;
    for (int i = 0; i < tap; ++i)
        power *= ps_winograd_point(j);
    return power;
}

/* Where number `tap` of the planes of x begins that plane `image` of y sums; -1: outside of x. */
PS_SMALL int64_t ps_winograd_plane(ps_winograd g, int64_t image, int tap)
{
    const int64_t at = image % g.images * g.plane_stride + tap * g.plane_step - g.front;
    return at < 0 || at >= g.deep ? -1 : image / g.images * g.x_image + at * g.x_plane;
}

/* The first pixel along an axis of a tile of `count` pixels; tiles of neighbouring pixels lie side
 * by side, if a filter reads every step-th. */
PS_SMALL int64_t ps_tile_start(int64_t tile, int64_t count, int64_t step)
{
    return tile / step * count * step + tile % step;
}

PS_INLINE ps_vec ps_minus(ps_vec x, ps_vec y) { return x - y; }

/* All rows of B^T d: of three points. */
PS_INLINE void ps_winograd_in3(ps_vec *t, const ps_vec *d)
{
    t[0] = ps_minus(d[1], d[0]);
    t[1] = d[1];
    t[2] = ps_minus(d[2], d[1]);
}

/* Of five. */
PS_INLINE void ps_winograd_in5(ps_vec *t, const ps_vec *d)
{
    const ps_vec a = ps_minus(d[3], d[1]);
    t[0] = ps_fma(ps_splat(2.0f), ps_minus(d[0], d[2]), a);
    t[1] = ps_minus(a, ps_add(d[1], d[2]));
    t[2] = ps_fma(ps_splat(3.0f), ps_minus(d[1], d[2]), a);
    t[3] = a;
    t[4] = ps_fma(ps_splat(-2.0f), a, ps_minus(d[4], d[2]));
}

/* Some rows of B^T d, those of one half: of four points. */
PS_INLINE void ps_winograd_in4(ps_vec *t, const ps_vec *d, int half)
{
    if (half == 0) {
        t[0] = ps_minus(d[2], d[0]);
        t[1] = ps_add(d[1], d[2]);
    } else {
        t[0] = ps_minus(d[2], d[1]);
        t[1] = ps_minus(d[3], d[1]);
    }
}

/* Of six. */
PS_INLINE void ps_winograd_in6(ps_vec *t, const ps_vec *d, int half)
{
    if (half == 0) {
        const ps_vec minus4 = ps_splat(-4.0f);
        const ps_vec a = ps_fma(minus4, d[2], d[4]), b = ps_fma(minus4, d[1], d[3]);
        t[0] = ps_fma(ps_splat(4.0f), d[0], ps_fma(ps_splat(-5.0f), d[2], d[4]));
        t[1] = ps_add(a, b);
        t[2] = ps_minus(a, b);
    } else {
        const ps_vec two = ps_splat(2.0f);
        const ps_vec a = ps_minus(d[4], d[2]), b = ps_minus(d[3], d[1]);
        t[0] = ps_fma(two, b, a);
        t[1] = ps_fma(ps_splat(-2.0f), b, a);
        t[2] = ps_fma(ps_splat(4.0f), d[1], ps_fma(ps_splat(-5.0f), d[3], d[5]));
    }
}

/* Of eight. */
PS_INLINE void ps_winograd_in8(ps_vec *t, const ps_vec *d, int half)
{
    if (half == 0) {
        const ps_vec far = ps_splat(5.25f), near = ps_splat(-4.25f);
        const ps_vec a = ps_fma(near, d[4], ps_add(d[2], d[6]));
        const ps_vec b = ps_fma(near, d[3], ps_add(d[1], d[5]));
        t[0] = ps_fma(far, ps_minus(d[2], d[4]), ps_minus(d[6], d[0]));
        t[1] = ps_add(a, b);
        t[2] = ps_minus(a, b);
        t[3] = ps_fma(far, ps_minus(d[3], d[5]), ps_minus(d[7], d[1]));
    } else {
        const ps_vec two = ps_splat(2.0f), part = ps_splat(0.5f);
        const ps_vec a = ps_fma(ps_splat(-1.25f), d[4], ps_fma(ps_splat(0.25f), d[2], d[6]));
        const ps_vec c = ps_fma(ps_splat(-5.0f), d[4], ps_fma(ps_splat(4.0f), d[2], d[6]));
        const ps_vec minus = ps_splat(-2.5f);
        const ps_vec b = ps_fma(minus, d[3], ps_fma(two, d[5], ps_mul(part, d[1])));
        const ps_vec e = ps_fma(minus, d[3], ps_fma(part, d[5], ps_mul(two, d[1])));
        t[0] = ps_add(a, b);
        t[1] = ps_minus(a, b);
        t[2] = ps_add(c, e);
        t[3] = ps_minus(c, e);
    }
}

/* Some rows of B^T d, those of one half, by the number of points; one point is the pixel itself. */
PS_INLINE void ps_winograd_in_half(ps_vec *t, const ps_vec *d, int points, int half)
{
    if (points == 1)
        t[0] = d[0];
    else if (points == 4)
        ps_winograd_in4(t, d, half);
    else if (points == 6)
        ps_winograd_in6(t, d, half);
    else
        ps_winograd_in8(t, d, half);
}

/* All rows of B^T d of every second pixel. */
PS_INLINE void ps_winograd_in_part(ps_vec *t, const ps_vec *d, ps_filtering part)
{
    _Alignas(64) ps_vec e[PS_POINTS / 2];
    PS_UNROLL
    for (int i = 0; i < PS_POINTS / 2; ++i)
        if (i < part.points)
            e[i] = d[2 * i];
    if (part.points == part.outputs) {
        PS_UNROLL
        for (int i = 0; i < PS_POINTS / 2; ++i)
            if (i < part.points)
                t[i] = e[i];
    } else if (part.points == 3)
        ps_winograd_in3(t, e);
    else if (part.points == 5)
        ps_winograd_in5(t, e);
    else {
        ps_winograd_in_half(t, e, part.points, 0);
        ps_winograd_in_half(t + part.points / 2, e, part.points, 1);
    }
}

/* Rows of one half: with a stride of 2 those of one part. */
PS_INLINE void ps_winograd_in(ps_vec *t, const ps_vec *d, ps_filtering f, int half)
{
    if (f.stride == 2)
        ps_winograd_in_part(t, d + half, ps_filtering_part(f, half));
    else
        ps_winograd_in_half(t, d, f.points, half);
}

/* A row of points of V from a row of the half transform. */
PS_INLINE void ps_winograd_across(float *v, int64_t v_point, const ps_vec *t, ps_filtering f)
{
    PS_UNROLL
    for (int side = 0; side < ps_halves(f.points); ++side) {
        _Alignas(64) ps_vec u[PS_POINTS / 2];
        ps_winograd_in(u, t, f, side);
        PS_UNROLL
        for (int j = 0; j < ps_winograd_most_of_half(f.points); ++j)
            if (j < ps_winograd_half(f.points, side))
                ps_store(v + ps_winograd_row(f, side, j) * v_point, u[j]);
    }
}
