/* Register tiles of the work-items of a group, which have copied both factors into the memory that
 * they share: lines of rows of A, and of columns of B, one a step of the reduction. */

typedef ps_b ps_shared; /* an element of either factor in that memory */

/* A vector of neighbours in x into as many lines, `line` apart; zeros where they are not real. */
PS_INLINE void ps_copy_across(PS_LOCAL ps_shared *to, int line, const ps_x *x, int real)
{
    const ps_vec v = real ? ps_x_real(x, PS_LANES) : ps_zero();
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        to[i * line] = ps_lane(v, i);
}

/* A vector of neighbours of packed weights into one line: panels lie on whole vectors. */
PS_INLINE void ps_copy_along(PS_LOCAL ps_shared *to, const ps_b *from)
{
    ps_store_shared(to, ps_load_aligned(from));
}

/* acc += A * B over `depth` steps.  Rows of A are neighbours; vectors of B lie `apart`, so that the
 * items of a group read neighbouring ones at a time. */
PS_INLINE void ps_run_lines(ps_acc *acc, ps_tile t, const PS_LOCAL ps_shared *a,
                            const PS_LOCAL ps_shared *b, int depth, int a_line, int b_line,
                            int apart)
{
    PS_UNROLL
    for (int k = 0; k < depth; ++k, a += a_line, b += b_line) {
        _Alignas(64) ps_vec bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_load_shared(b + v * apart);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const ps_vec av = ps_splat(a[i]);
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] = ps_fma(av, bv[v], acc[i * t.vecs + v]);
        }
    }
}

/* The vector of columns v of a row alone: those that exist. */
PS_INLINE ps_tile ps_piece(ps_tile t, int v, int64_t columns, int64_t apart)
{
    t.rows = t.vecs = t.wrap = 1;
    t.lanes = (int)ps_least(columns - v * apart, t.lanes);
    return t;
}

/* What is done to sums before they are stored row by row: factors, and the bias of columns below
 * `columns`. */
PS_INLINE void ps_add_bias(ps_acc *acc, ps_tile t, int64_t columns, int64_t apart,
                           const ps_epilogue *e)
{
    ps_settle(acc, t);
    ps_times_alpha(acc, t, e->alpha);
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const ps_tile one = ps_piece(t, v, columns, apart);
        if (!e->bias || one.lanes <= 0)
            continue;
        const ps_vec x = ps_load_used(e->bias + v * apart, one, 0);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i)
            acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], x);
    }
}

/* Epilogue and store of the first `rows` rows, which lie at `places` in y, and of the columns below
 * `columns`; vectors are `apart`. */
PS_INLINE void ps_end_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                            int64_t columns, int64_t apart, ps_y *y, const ps_epilogue *e)
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
            if (e->residual)
                ps_add_residual(sums, one, e->residual + c, e->beta);
            ps_activate(sums, 1, e->activation);
            if (e->clamp)
                ps_clamp(sums, one, e->clamp);
            ps_put(sums, one, y + c, 0);
        }
    }
}
