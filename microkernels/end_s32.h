/* The epilogue of whole sums that stay so: offset, bias, residual, clamp, and the store. */
PS_SCALAR int32_t ps_saturated(float x)
{
    return x >= 0x1p31f ? INT32_MAX : x > -0x1p31f ? (int32_t)x : INT32_MIN;
}

PS_INLINE void ps_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_settle(acc, t);
    if (e) {
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
    if (e && e->residual)
        ps_accumulate(acc, t, e->residual);
    if (e && e->clamp) {
        const ps_int lowest = ps_int_splat(ps_saturated(e->clamp[0]));
        const ps_int highest = ps_int_splat(ps_saturated(e->clamp[1]));
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            acc[i] = ps_int_min(highest, ps_int_max(lowest, acc[i]));
    }
    ps_put(acc, t, c, t.stream && e && e->aligned);
}
