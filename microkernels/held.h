/* Products whose x lies in the memory of a group, and results that stay there: f32 alone. */

/* Elements `apart`, of which the first `used` exist; zeros behind them. */
PS_INLINE ps_vec ps_held_apart(const PS_LOCAL ps_shared *p, int64_t apart, int64_t used)
{
    _Alignas(64) float x[PS_LANES];
    if (apart == 1 && used >= PS_LANES)
        return ps_load_shared(p);
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = i < used ? p[i * apart] : 0.0f;
    return ps_load(x);
}

/* ps_read_rows of such an x. */
PS_INLINE void ps_held_rows(ps_acc *acc, ps_tile t, const PS_LOCAL ps_shared *x,
                            const ps_place *places, int64_t a_k, const ps_b *b, int64_t b_k,
                            int64_t b_col, int depth, int64_t columns, int64_t apart)
{
    const int many = a_k == 1 && depth % PS_LANES == 0 ? PS_LANES : 1;
    PS_UNROLL
    for (int k = 0; k < depth; k += many) {
        _Alignas(64) ps_vec av[PS_MOST_ROWS];
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const PS_LOCAL ps_shared *row = x + places[i] + k * a_k;
            av[i] = places[i] < 0 ? ps_zero() : many > 1 ? ps_load_shared(row) : ps_splat(row[0]);
        }
        ps_add_steps(acc, t, av, many, b + k * b_k, b_k, b_col, columns, apart);
    }
}

/* ps_read_channels of such an x. */
PS_INLINE void ps_held_channels(ps_acc *acc, ps_tile t, const PS_LOCAL ps_shared *x,
                                const ps_place *places, int64_t a_k, int64_t a_col, const ps_b *b,
                                int64_t b_k, int64_t b_col, int depth, int64_t columns,
                                int64_t apart)
{
    PS_UNROLL
    for (int k = 0; k < depth; ++k, x += a_k, b += b_k) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const int64_t used = columns - v * apart;
            const ps_vec bv = ps_read_columns(b, v, b_col, columns, apart);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                const PS_LOCAL ps_shared *row = x + places[i] + v * apart * a_col;
                const ps_vec av = places[i] < 0 ? ps_zero() : ps_held_apart(row, a_col, used);
                acc[i * t.vecs + v] = ps_fma(av, bv, acc[i * t.vecs + v]);
            }
        }
    }
}

/* What is done to the same sums as ps_end_lines ends, before activation and clamp: factors, bias, and
 * a residual whose rows lie at `places`, which need not be those of y; below 0 there is none. */
PS_INLINE void ps_add_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                            int64_t columns, int64_t apart, const ps_y *residual,
                            const ps_epilogue *e)
{
    ps_add_bias(acc, t, columns, apart, e);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            const int64_t c = places[i] + v * apart * t.c_col;
            if (i < rows && one.lanes > 0 && places[i] >= 0)
                ps_add_residual(acc + i * t.vecs + v, one, residual + c, e->beta);
        }
    }
}

/* The same of a residual in the memory of a group. */
PS_INLINE void ps_add_held(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                           int64_t columns, int64_t apart, const PS_LOCAL ps_shared *residual,
                           const ps_epilogue *e)
{
    ps_add_bias(acc, t, columns, apart, e);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            const int64_t c = places[i] + v * apart * t.c_col;
            ps_acc *sums = acc + i * t.vecs + v;
            if (i >= rows || one.lanes <= 0)
                continue;
            const ps_vec x = ps_held_apart(residual + c, t.c_col, one.lanes);
            *sums = ps_add(*sums, ps_mul(x, ps_splat(e->beta)));
        }
    }
}

/* The epilogue that remains behind these. */
PS_INLINE ps_epilogue ps_rest(ps_epilogue e)
{
    e.bias = 0;
    e.residual = 0;
    e.alpha = 1;
    return e;
}

/* ps_end_lines, without a residual, of a y in the memory of a group. */
PS_INLINE void ps_keep_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                             int64_t columns, int64_t apart, PS_LOCAL ps_shared *y,
                             const ps_epilogue *e)
{
    ps_add_bias(acc, t, columns, apart, e);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            PS_LOCAL ps_shared *to = y + places[i] + v * apart * t.c_col;
            ps_acc *sums = acc + i * t.vecs + v;
            if (i >= rows || one.lanes <= 0)
                continue;
            ps_activate(sums, 1, e->activation);
            if (e->clamp)
                ps_clamp(sums, one, e->clamp);
            PS_UNROLL
            for (int lane = 0; lane < PS_LANES; ++lane)
                if (lane < one.lanes)
                    to[lane * t.c_col] = ps_lane(*sums, lane);
        }
    }
}
