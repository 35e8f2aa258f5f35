/* Winograd's minimal filtering F(m x m, 3 x 3) around a batch of GEMMs (Lavin and Gray, 2016).
 *
 *   V = B^T x B for every tile of (m + 2)^2 pixels, U = G w G^T for every pair of channels,
 *   M[t] = V[t] U[t] for each of the (m + 2)^2 points t, and y = A^T M A
 *
 * with the interpolation points 0, 1, -1 (m = 2) and 0, 1, -1, 2, -2 (m = 4).  Channels lie along
 * the lanes.  A tile of six by six vectors exceeds the registers, so it is transformed in halves,
 * each of which reads what it needs again: half 0 gives rows 0..m/2, half 1 the others. */

enum { PS_RUN = 8 }; /* tiles of an image row that are turned together: a box of 14 KiB in L1 */

/* A problem and the distances in its buffers, in elements; a constant that the compiler sees. */
typedef struct {
    int m;                         /* pixels of y along an edge of a tile: 2 or 4 */
    int64_t across, down;          /* tiles of an image */
    int64_t height, width, channels; /* of x */
    int64_t top, left;             /* padding */
    int64_t p, q, filters;         /* height, width and channels of y */
    int64_t x_image, x_row, x_col, x_channel;
    int64_t y_image, y_row, y_col, y_channel;
    int64_t v_point, v_tile;       /* V and M: from point to point, from tile to tile */
    int64_t m_point, m_tile;
    int64_t block, cols;           /* columns of U: of a block, of a panel that kernels read */
} ps_winograd;

PS_INLINE ps_vec ps_minus(ps_vec x, ps_vec y) { return x - y; }

/* Some rows of B^T d: those of one half, m / 2 + 1 of them. */
PS_INLINE void ps_winograd_in(ps_vec *t, const ps_vec *d, int m, int half)
{
    if (m == 2 && half == 0) {
        t[0] = ps_minus(d[0], d[2]);
        t[1] = ps_add(d[1], d[2]);
    } else if (m == 2) {
        t[0] = ps_minus(d[2], d[1]);
        t[1] = ps_minus(d[1], d[3]);
    } else if (half == 0) {
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
