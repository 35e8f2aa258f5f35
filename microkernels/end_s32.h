/* The epilogue of whole sums that stay so: offset, bias, residual, clamp, and the store. */
PS_SCALAR int32_t ps_saturated(float x)
{
    return x >= 0x1p31f ? INT32_MAX : x > -0x1p31f ? (int32_t)x : INT32_MIN;
}

/* acc += offset + bias */
PS_INLINE void ps_shift_sums(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        ps_int x = ps_int_load(e->offset + v * PS_LANES, ps_used(t, v));
        if (e->bias)
            x = ps_int_add(x, ps_int_load(e->bias + v * PS_LANES, ps_used(t, v)));
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i)
            acc[i * t.vecs + v] = ps_int_add(acc[i * t.vecs + v], x);
    }
}

/* sum + residual, of which a vector holds the bits */
PS_INLINE ps_acc ps_with(ps_acc sum, ps_vec residual, const ps_epilogue *e)
{
    return (void)e, ps_acc_add(sum, ps_acc_of(residual));
}

PS_INLINE void ps_add_residual(ps_acc *acc, ps_tile t, const ps_y *residual, const ps_epilogue *e)
{
    (void)e;
    ps_accumulate(acc, t, residual);
}

/* What is done behind a residual. */
PS_INLINE void ps_finish(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    if (!e->clamp)
        return;
    const ps_int lowest = ps_int_splat(ps_saturated(e->clamp[0]));
    const ps_int highest = ps_int_splat(ps_saturated(e->clamp[1]));
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i)
        acc[i] = ps_int_min(highest, ps_int_max(lowest, acc[i]));
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
