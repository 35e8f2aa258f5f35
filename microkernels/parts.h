/* The end of register tiles whose sums lie in memory: vector registers take them by parts.  Row i
 * of C is at position i / wrap * pitch + i % wrap. */
enum { PS_PART = 16 }; /* vectors of a part */

PS_INLINE int ps_position(int i, int wrap, int pitch) { return i / wrap * pitch + i % wrap; }

/* What belongs to C from column n on, at element c. */
PS_INLINE ps_epilogue ps_moved(const ps_epilogue *e, int64_t n, int64_t c)
{
    ps_epilogue moved = {0};
    if (!e)
        return moved;
    moved = *e;
    moved.bias = e->bias ? e->bias + n : 0;
    moved.residual = e->residual ? e->residual + c : 0;
    moved.offset = e->offset ? e->offset + n : 0;
    moved.scale = e->scale ? e->scale + n : 0;
    return moved;
}

/* One row of C alone. */
PS_INLINE ps_tile ps_one_row(ps_tile t)
{
    t.rows = t.wrap = 1;
    return t;
}

/* Where rows of C are neighbours and columns apart: 16 rows x a vector of columns at a time, so
 * that whole vectors are written. */
PS_INLINE void ps_end_by_columns(const ps_acc *sums, int pitch, ps_tile t, ps_y *c,
                              const ps_epilogue *e)
{
    ps_tile u = t;
    u.vecs = 1;
    PS_UNROLL
    for (int first = 0; first < t.rows; first += PS_PART) {
        u.rows = u.wrap = t.rows - first < PS_PART ? t.rows - first : PS_PART;
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const int64_t at = first + v * PS_LANES * t.c_col;
            const ps_epilogue moved = ps_moved(e, v * PS_LANES, at);
            _Alignas(64) ps_acc column[PS_PART];
            PS_UNROLL
            for (int i = 0; i < PS_PART; ++i)
                if (i < u.rows)
                    column[i] = sums[ps_position(first + i, t.wrap, pitch) * t.vecs + v];
            u.lanes = v + 1 < t.vecs ? PS_LANES : t.lanes;
            ps_end(column, u, c + at, e ? &moved : 0);
        }
    }
}

/* Neighbours of one image row that end together: as many as divide it, in 16 registers. */
PS_INLINE int ps_group(ps_tile t)
{
    const int n = t.rows < t.wrap ? t.rows : t.rows % t.wrap ? 1 : t.wrap;
#define PS_TRY(r) n % r == 0 && r * t.vecs <= PS_PART ? r
    return PS_TRY(16) : PS_TRY(14) : PS_TRY(8) : PS_TRY(7) : PS_TRY(5) : PS_TRY(4) : PS_TRY(3)
         : PS_TRY(2) : 1;
#undef PS_TRY
}

PS_INLINE void ps_end_by_rows(const ps_acc *sums, int pitch, ps_tile t, ps_y *c,
                               const ps_epilogue *e)
{
    ps_tile u = t;
    u.rows = u.wrap = ps_group(t);
    for (int line = 0; line * t.wrap < t.rows; ++line)
        for (int i = 0; i < t.wrap && line * t.wrap + i < t.rows; i += u.rows) {
            const int64_t at = line * t.c_outer + i * t.c_inner;
            const ps_epilogue moved = ps_moved(e, 0, at);
            _Alignas(64) ps_acc part[PS_PART]; /* in registers, which `sums` can never be */
            PS_UNROLL
            for (int j = 0; j < PS_PART; ++j)
                if (j < u.rows * u.vecs)
                    part[j] = sums[(line * pitch + i) * t.vecs + j];
            ps_end(part, u, c + at, e ? &moved : 0);
        }
}

PS_INLINE void ps_end_parts(const ps_acc *sums, int pitch, ps_tile t, ps_y *c,
                            const ps_epilogue *e)
{
    if (t.c_col != 1 && ps_rows_touch(t))
        ps_end_by_columns(sums, pitch, t, c, e);
    else
        ps_end_by_rows(sums, pitch, t, c, e);
}
