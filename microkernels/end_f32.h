/* The epilogue of f32 sums: bias, residual, activation, clamp, and the store, which rounds where y
 * is narrow. */

enum { PS_MOST_SUMS = 64 }; /* vectors of a tile in registers */
PS_INLINE void ps_activate(ps_acc *acc, int count, ps_activation activation)
{
    _Alignas(64) float x[PS_MOST_SUMS * PS_LANES];
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

/* acc *= alpha */
PS_INLINE void ps_times_alpha(ps_acc *acc, ps_tile t, float alpha)
{
    if (alpha == 1) /* in the loop's condition it would keep gcc from unrolling: acc in memory */
        return;
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i)
        acc[i] = ps_mul(acc[i], ps_splat(alpha));
}

PS_INLINE ps_vec ps_load_used(const float *p, ps_tile t, int v)
{
    p += v * PS_LANES;
    return ps_used(t, v) == PS_LANES ? ps_load(p) : ps_load_first(p, ps_used(t, v));
}

/* acc = acc * alpha + bias */
PS_INLINE void ps_shift_sums(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    ps_times_alpha(acc, t, e->alpha);
    if (!e->bias)
        return;
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const ps_vec x = ps_load_used(e->bias, t, v);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i)
            acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], x);
    }
}

/* sum + beta * residual, of which a vector holds the bits */
PS_INLINE ps_acc ps_with(ps_acc sum, ps_vec residual, const ps_epilogue *e)
{
    return ps_add(sum, ps_mul(residual, ps_splat(e->beta)));
}

/* acc += beta * residual: where beta is not 1, vector by vector, so that one register holds it. */
PS_INLINE void ps_add_residual(ps_acc *acc, ps_tile t, const ps_y *residual, const ps_epilogue *e)
{
    if (e->beta == 1) {
        ps_accumulate(acc, t, residual);
        return;
    }
    ps_tile one = t;
    one.rows = one.wrap = one.vecs = 1;
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i) {
        const int v = i % t.vecs;
        ps_acc x = ps_splat(0);
        one.lanes = ps_used(t, v);
        ps_accumulate(&x, one, residual + ps_c_row(t, i / t.vecs) + v * PS_LANES * t.c_col);
        acc[i] = ps_with(acc[i], x, e);
    }
}

/* What is done behind a residual. */
PS_INLINE void ps_finish(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    ps_activate(acc, t.rows * t.vecs, e->activation);
    if (e->clamp)
        ps_clamp(acc, t, e->clamp);
}

PS_INLINE void ps_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_settle(acc, t);
    if (e)
        ps_shift_sums(acc, t, e);
    if (e && e->residual)
        ps_add_residual(acc, t, e->residual, e);
    if (e)
        ps_finish(acc, t, e);
    ps_put(acc, t, c, t.stream && e && e->aligned);
}
