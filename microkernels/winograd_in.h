/* Winograd's minimal filtering around a batch of GEMMs (Lavin and Gray, 2016), along both axes.
 *
 *   V = B^T x B for every tile of pixels, U = G w G^T for every pair of channels,
 *   M[t] = V[t] U[t] for each of the points t, and y = A^T M A
 *
 * F(m, r) along an axis, m pixels of y by r taps, takes m + r - 1 pixels of x to as many points: the
 * first of 0, 1, -1, 2, -2, 1/2, -1/2, and infinity, the last one.  A filter of one tap has one
 * point, and nothing is transformed.  Channels lie along the lanes.  A tile of vectors exceeds the
 * registers, so it is transformed in halves of its rows of points, each of which reads what it needs
 * again. */

enum {
    PS_RUN = 8,   /* tiles of an image row that are turned together: a box of 18 KiB in L1 */
    PS_POINTS = 8 /* along an axis, at most */
};

/* A problem and the distances in its buffers, in elements; a constant that the compiler sees. */
typedef struct {
    int tall, wide;                /* pixels of y down and across a tile */
    int rows, columns;             /* points down and across a tile: 1, 4, 6 or 8 */
    int tall_step, wide_step;      /* from one pixel of a tile to the next: dilation */
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

/* How many of so many points, or pixels of y, each half has; one stays whole. */
PS_SMALL int ps_halves(int count) { return count == 1 ? 1 : 2; }

PS_SMALL int ps_winograd_half(int count) { return count == 1 ? 1 : count / 2; }

/* Which point is number i of a half: a point and its negative share sums. */
PS_SMALL int ps_winograd_row(int points, int half, int i)
{
    if (points == 8)
        return half ? 3 + i : i == 3 ? 7 : i;
    return half * (points / 2) + i;
}

/* Row j of G is this share of the powers of point j. */
PS_SMALL double ps_winograd_share(int points, int j)
{
    if (j == points - 1)
        return 1.0;
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
PS_SMALL double ps_winograd_power(int points, int taps, int j, int tap)
{
    if (j == points - 1)
        return tap == taps - 1 ? 1.0 : 0.0;
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
PS_SMALL int64_t ps_tile_start(int64_t tile, int count, int step)
{
    return tile / step * count * step + tile % step;
}

PS_INLINE ps_vec ps_minus(ps_vec x, ps_vec y) { return x - y; }

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

PS_INLINE void ps_winograd_in(ps_vec *t, const ps_vec *d, int points, int half)
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

/* A row of points of V from a row of the half transform. */
PS_INLINE void ps_winograd_across(float *v, int64_t v_point, const ps_vec *t, int points)
{
    const int each = ps_winograd_half(points);
    PS_UNROLL
    for (int side = 0; side < ps_halves(points); ++side) {
        _Alignas(64) ps_vec u[PS_POINTS / 2];
        ps_winograd_in(u, t, points, side);
        PS_UNROLL
        for (int j = 0; j < each; ++j)
            ps_store(v + ps_winograd_row(points, side, j) * v_point, u[j]);
    }
}
