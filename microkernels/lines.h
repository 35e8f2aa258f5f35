/* The end of sums of a group's work-items, row by row: the first `rows` rows, which lie at `places`,
 * and the columns below `columns`, whose vectors are `apart`. */

/* The vector of columns v of a row alone: those that exist. */
PS_INLINE ps_tile ps_piece(ps_tile t, int v, int64_t columns, int64_t apart)
{
    t.rows = t.vecs = t.wrap = 1;
    t.lanes = (int)ps_least(columns - v * apart, t.lanes);
    return t;
}

/* What is done to the sums of vector v of a row before a residual. */
PS_INLINE void ps_shift_piece(ps_acc *sums, ps_tile one, int64_t column, const ps_epilogue *e)
{
    ps_epilogue own = *e;
    if (e->bias)
        own.bias += column;
    if (e->offset)
        own.offset += column;
    if (e->to)
        own.scale += column;
    ps_shift_sums(sums, one, &own);
}

/* What is done to all sums before a residual. */
PS_INLINE void ps_shift_lines(ps_acc *acc, ps_tile t, int64_t columns, int64_t apart,
                              const ps_epilogue *e)
{
    ps_settle(acc, t);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            if (one.lanes > 0)
                ps_shift_piece(acc + i * t.vecs + v, one, v * apart, e);
        }
    }
}

/* That, and a residual, whose rows need not lie as those of y do: below 0 there is none. */
PS_INLINE void ps_add_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                            int64_t columns, int64_t apart, const ps_y *residual,
                            const ps_epilogue *e)
{
    ps_shift_lines(acc, t, columns, apart, e);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            const int64_t c = places[i] + v * apart * t.c_col;
            if (i < rows && one.lanes > 0 && places[i] >= 0)
                ps_add_residual(acc + i * t.vecs + v, one, residual + c, e);
        }
    }
}

/* What is done behind a residual, and the store. */
PS_INLINE void ps_end_rest(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                           int64_t columns, int64_t apart, ps_y *y, const ps_epilogue *e)
{
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            ps_acc *sums = acc + i * t.vecs + v;
            if (i >= rows || one.lanes <= 0)
                continue;
            ps_finish(sums, one, e);
            ps_put(sums, one, y + places[i] + v * apart * t.c_col, 0);
        }
    }
}

/* All of the epilogue and the store, sums after sums, so that few are in registers at a time; a
 * residual lies as y does. */
PS_INLINE void ps_end_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                            int64_t columns, int64_t apart, ps_y *y, const ps_epilogue *e)
{
    ps_settle(acc, t);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            const int64_t c = places[i] + v * apart * t.c_col;
            ps_acc *sums = acc + i * t.vecs + v;
            if (i >= rows || one.lanes <= 0)
                continue;
            ps_shift_piece(sums, one, v * apart, e);
            if (e->residual)
                ps_add_residual(sums, one, e->residual + c, e);
            ps_finish(sums, one, e);
            ps_put(sums, one, y + c, 0);
        }
    }
}
