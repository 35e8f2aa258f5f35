/* Products whose x lies in the memory of a group. */
typedef ps_x ps_x_held;
typedef float ps_real_held;

/* Elements `apart`, of which the first `used` exist; zeros behind them. */
PS_INLINE ps_vec ps_held_apart(const PS_LOCAL ps_x_held *p, int64_t apart, int64_t used)
{
    _Alignas(64) float x[PS_LANES];
    if (sizeof(ps_x) == sizeof(ps_real_held) && apart == 1 && used >= PS_LANES)
        return ps_load_shared((const PS_LOCAL ps_real_held *)p); /* a vector of f32 at once */
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = i < used ? ps_x_value(p[i * apart]) : 0.0f;
    return ps_load(x);
}

/* ps_read_rows of such an x. */
PS_INLINE void ps_held_rows(ps_acc *acc, ps_tile t, const PS_LOCAL ps_x_held *x,
                            const ps_place *places, int64_t a_k, const ps_b *b, int64_t b_k,
                            int64_t b_col, int depth, int64_t columns, int64_t apart)
{
    const int many = a_k == 1 && depth % PS_LANES == 0 ? PS_LANES : 1;
    PS_UNROLL
    for (int k = 0; k < depth; k += many) {
        _Alignas(64) ps_vec av[PS_MOST_ROWS];
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const PS_LOCAL ps_x_held *row = x + places[i] + k * a_k;
            av[i] = places[i] < 0 ? ps_zero()
                    : many > 1    ? ps_held_apart(row, 1, PS_LANES)
                                  : ps_splat(ps_x_value(row[0]));
        }
        ps_add_steps(acc, t, av, many, b + k * b_k, b_k, b_col, columns, apart);
    }
}

/* ps_read_channels of such an x. */
PS_INLINE void ps_held_channels(ps_acc *acc, ps_tile t, const PS_LOCAL ps_x_held *x,
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
                const PS_LOCAL ps_x_held *row = x + places[i] + v * apart * a_col;
                const ps_vec av = places[i] < 0 ? ps_zero() : ps_held_apart(row, a_col, used);
                acc[i * t.vecs + v] = ps_fma(av, bv, acc[i * t.vecs + v]);
            }
        }
    }
}
