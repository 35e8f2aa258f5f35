/* Winograd's sums on the way back: what a tile of M becomes; follows winograd_in.h. */

/* Rows of A^T d: in half 0 those that add d[1] and d[2] (0 and 2), in half 1 the others. */
PS_INLINE void ps_winograd_out(ps_vec *t, const ps_vec *d, int m, int half)
{
    const ps_vec a = half ? ps_minus(d[1], d[2]) : ps_add(d[1], d[2]);
    if (m == 2) {
        t[0] = half ? ps_minus(a, d[3]) : ps_add(d[0], a);
        return;
    }
    const ps_vec b = half ? ps_minus(d[3], d[4]) : ps_add(d[3], d[4]);
    if (half) {
        t[0] = ps_fma(ps_splat(2.0f), b, a);
        t[1] = ps_add(ps_fma(ps_splat(8.0f), b, a), d[5]);
    } else {
        t[0] = ps_add(d[0], ps_add(a, b));
        t[1] = ps_fma(ps_splat(4.0f), b, a);
    }
}
