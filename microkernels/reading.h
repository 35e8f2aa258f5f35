/* Products of work-items that read both factors themselves, through the caches. */

enum { PS_MOST_ROWS = 16 }; /* of a work-item's tile */

/* Elements `apart`, of which the first `used` exist; zeros behind them. */
PS_INLINE ps_vec ps_read_apart(const ps_x *p, int64_t apart, int64_t used)
{
    _Alignas(64) float x[PS_LANES];
    if (apart == 1)
        return ps_x_real(p, (int)ps_least(used, PS_LANES));
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = i < used ? ps_x_value(p[i * apart]) : 0.0f;
    return ps_load(x);
}

/* Vector v of a step of B: of a panel, whole and where vectors lie, where b_col is 0. */
PS_INLINE ps_vec ps_read_columns(const ps_b *b, int v, int64_t b_col, int64_t columns,
                                 int64_t apart)
{
    const int64_t used = columns - v * apart;
    _Alignas(64) float x[PS_LANES];
    b += v * apart * (b_col ? b_col : 1);
    if (b_col == 0)
        return ps_load_aligned(b);
    if (b_col == 1)
        return used >= PS_LANES ? ps_load(b) : ps_load_first(b, (int)used);
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = i < used ? b[i * b_col] : 0.0f;
    return ps_load(x);
}

/* acc += A * B over `steps` steps, b_k apart in B: lane j of av[i] is row i of A in step j. */
PS_INLINE void ps_add_steps(ps_acc *acc, ps_tile t, const ps_vec *av, int steps, const ps_b *b,
                            int64_t b_k, int64_t b_col, int64_t columns, int64_t apart)
{
    PS_UNROLL
    for (int j = 0; j < steps; ++j, b += b_k) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_vec bv = ps_read_columns(b, v, b_col, columns, apart);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                const ps_vec a = ps_splat(ps_lane(av[i], j));
                acc[i * t.vecs + v] = ps_fma(a, bv, acc[i * t.vecs + v]);
            }
        }
    }
}

/* acc += A * B over `depth` steps, a_k and b_k apart, of what the item reads itself.  Row i of A lies
 * at places[i] of x; it is zero where that is below 0.  Vectors of B lie `apart`, and have columns
 * below `columns`, b_col from each other; 0: B is a panel. */
PS_INLINE void ps_read_rows(ps_acc *acc, ps_tile t, const ps_x *x, const ps_place *places,
                            int64_t a_k, const ps_b *b, int64_t b_k, int64_t b_col, int depth,
                            int64_t columns, int64_t apart)
{
    const int many = a_k == 1 && depth % PS_LANES == 0 ? PS_LANES : 1;
    PS_UNROLL
    for (int k = 0; k < depth; k += many) {
        _Alignas(64) ps_vec av[PS_MOST_ROWS];
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const ps_x *row = x + places[i] + k * a_k;
            av[i] = places[i] < 0 ? ps_zero() : many > 1 ? ps_x_real(row, PS_LANES) : ps_x_splat(row);
        }
        ps_add_steps(acc, t, av, many, b + k * b_k, b_k, b_col, columns, apart);
    }
}

/* The same where rows of A are vectors along the columns too, a_col from each other. */
PS_INLINE void ps_read_channels(ps_acc *acc, ps_tile t, const ps_x *x, const ps_place *places,
                                int64_t a_k, int64_t a_col, const ps_b *b, int64_t b_k,
                                int64_t b_col, int depth, int64_t columns, int64_t apart)
{
    PS_UNROLL
    for (int k = 0; k < depth; ++k, x += a_k, b += b_k) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const int64_t used = columns - v * apart;
            const ps_vec bv = ps_read_columns(b, v, b_col, columns, apart);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                const ps_x *row = x + places[i] + v * apart * a_col;
                const ps_vec av = places[i] < 0 ? ps_zero() : ps_read_apart(row, a_col, used);
                acc[i * t.vecs + v] = ps_fma(av, bv, acc[i * t.vecs + v]);
            }
        }
    }
}
