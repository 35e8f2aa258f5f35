/* The epilogue of f32 sums: bias, residual, clamp, and the store, which rounds where y is narrow. */
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
    if (e && e->clamp)
        ps_clamp(acc, t, e->clamp);
    ps_put(acc, t, c, t.stream && e && e->aligned);
}
