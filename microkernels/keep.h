/* The end of sums whose residual, or result, is in the memory of a group: see lines.h. */
typedef ps_y ps_y_held;

/* ps_add_lines of such a residual. */
PS_INLINE void ps_add_held(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                           int64_t columns, int64_t apart, const PS_LOCAL ps_y_held *residual,
                           const ps_epilogue *e)
{
    ps_shift_lines(acc, t, columns, apart, e);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            const PS_LOCAL ps_y_held *from = residual + places[i] + v * apart * t.c_col;
            _Alignas(64) ps_y own[PS_LANES];
            ps_acc *sums = acc + i * t.vecs + v;
            if (i >= rows || one.lanes <= 0)
                continue;
            PS_UNROLL
            for (int lane = 0; lane < PS_LANES; ++lane)
                own[lane] = lane < one.lanes ? from[lane * t.c_col] : 0;
            *sums = ps_with(*sums, ps_y_load(own, PS_LANES), e);
        }
    }
}

/* ps_end_rest of such a y. */
PS_INLINE void ps_keep_rest(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                            int64_t columns, int64_t apart, PS_LOCAL ps_y_held *y,
                            const ps_epilogue *e)
{
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_tile one = ps_piece(t, v, columns, apart);
            PS_LOCAL ps_y_held *to = y + places[i] + v * apart * t.c_col;
            _Alignas(64) ps_y own[PS_LANES];
            ps_acc *sums = acc + i * t.vecs + v;
            if (i >= rows || one.lanes <= 0)
                continue;
            ps_finish(sums, one, e);
            ps_y_store(own, ps_acc_bits(*sums), PS_LANES);
            PS_UNROLL
            for (int lane = 0; lane < PS_LANES; ++lane)
                if (lane < one.lanes)
                    to[lane * t.c_col] = own[lane];
        }
    }
}

/* ps_end_lines of such a y, without a residual. */
PS_INLINE void ps_keep_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                             int64_t columns, int64_t apart, PS_LOCAL ps_y_held *y,
                             const ps_epilogue *e)
{
    ps_shift_lines(acc, t, columns, apart, e);
    ps_keep_rest(acc, t, places, rows, columns, apart, y, e);
}
