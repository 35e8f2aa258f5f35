/* Winograd's sums on the way back: what a tile of M becomes; follows winograd_in.h. */

/* Rows of A^T d, m in all: in half 0 those that add a point and its negative (0 and 2), in half 1
 * the others, of which the last one has the point at infinity. */
PS_INLINE void ps_winograd_out_part(ps_vec *t, const ps_vec *d, int m, int points, int half)
{
    if (points == m) {
        PS_UNROLL
        for (int i = 0; i < ps_winograd_most_of_half(m); ++i)
            t[i] = d[2 * i + half];
        return;
    }
    if (points == 3) {
        t[0] = half ? ps_add(d[1], d[2]) : ps_add(d[0], d[1]);
        return;
    }
    const ps_vec a = half ? ps_minus(d[1], d[2]) : ps_add(d[1], d[2]);
    if (points == 4) {
        t[0] = half ? ps_add(a, d[3]) : ps_add(d[0], a);
        return;
    }
    if (points == 5) {
        if (half) {
            t[0] = ps_fma(ps_splat(2.0f), d[3], a);
            if (m == 2)
                t[0] = ps_add(t[0], d[4]);
            else
                t[1] = ps_add(a, ps_fma(ps_splat(8.0f), d[3], d[4]));
        } else {
            t[0] = ps_add(a, ps_add(d[0], d[3]));
            if (m == 4)
                t[1] = ps_fma(ps_splat(4.0f), d[3], a);
        }
        return;
    }
    const ps_vec b = half ? ps_minus(d[3], d[4]) : ps_add(d[3], d[4]);
    if (points == 6) {
        if (half) {
            t[0] = ps_fma(ps_splat(2.0f), b, a);
            if (m == 2)
                t[0] = ps_add(t[0], d[5]);
            else
                t[1] = ps_add(ps_fma(ps_splat(8.0f), b, a), d[5]);
        } else {
            t[0] = ps_add(d[0], ps_add(a, b));
            if (m == 4)
                t[1] = ps_fma(ps_splat(4.0f), b, a);
        }
        return;
    }
    const ps_vec c = half ? ps_minus(d[5], d[6]) : ps_add(d[5], d[6]);
    if (half) {
        t[0] = ps_fma(ps_splat(2.0f), b, a);
        if (m == 2)
            t[0] = ps_add(t[0], ps_fma(ps_splat(0.5f), c, d[7]));
        else {
            t[0] = ps_fma(ps_splat(0.5f), c, t[0]);
            t[1] = ps_add(ps_fma(ps_splat(8.0f), b, a), ps_fma(ps_splat(0.125f), c, d[7]));
        }
    } else {
        t[0] = ps_add(ps_add(d[0], a), ps_add(b, c));
        if (m == 4)
            t[1] = ps_fma(ps_splat(4.0f), b, ps_fma(ps_splat(0.25f), c, a));
    }
}

/* Rows of A^T d, those of one half; with a stride of 2 the sum of both parts. */
PS_INLINE void ps_winograd_out(ps_vec *t, const ps_vec *d, ps_filtering f, int half)
{
    if (f.stride == 1) {
        ps_winograd_out_part(t, d, f.outputs, f.points, half);
        return;
    }
    const int even = ps_winograd_most_of_half(f.points), odd = f.points - even;
    ps_winograd_out_part(t, d, f.outputs, even, half);
    if (odd == 0)
        return;
    _Alignas(64) ps_vec more[2];
    ps_winograd_out_part(more, d + even, f.outputs, odd, half);
    PS_UNROLL
    for (int i = 0; i < ps_winograd_most_of_half(f.outputs); ++i)
        t[i] = ps_add(t[i], more[i]);
}
