/* The epilogue of f32 sums: bias, residual, activation, clamp, and the store, which rounds where y
 * is narrow. */

enum { PS_MOST_SUMS = 64 }; /* vectors of a tile in registers */
PS_INLINE void ps_activate(ps_acc *acc, int count, ps_activation activation)
{
    __attribute__((aligned(64))) float x[PS_MOST_SUMS * PS_LANES];
    if (!activation)
        return;
    PS_UNROLL
    for (int i = 0; i < count; ++i)
        ps_store(x + i * PS_LANES, acc[i]);
    activation(x, count);
    PS_UNROLL
    for (int i = 0; i < count; ++i)
        acc[i] = ps_load(x + i * PS_LANES);
}

PS_INLINE void ps_clamp(ps_acc *acc, ps_tile t, const float *clamp)
{
    const ps_vec lowest = ps_splat(clamp[0]), highest = ps_splat(clamp[1]);
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i) /* in this order a NaN stays one */
        acc[i] = ps_min(highest, ps_max(lowest, acc[i]));
}

PS_INLINE void ps_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_settle(acc, t);
    if (e && e->bias) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const float *bias = e->bias + v * PS_LANES;
            const ps_vec x =
                ps_used(t, v) == PS_LANES ? ps_load(bias) : ps_load_first(bias, ps_used(t, v));
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], x);
        }
    }
    if (e && e->residual)
        ps_accumulate(acc, t, e->residual);
    if (e)
        ps_activate(acc, t.rows * t.vecs, e->activation);
    if (e && e->clamp)
        ps_clamp(acc, t, e->clamp);
    ps_put(acc, t, c, t.stream && e && e->aligned);
}
