/* The epilogue of whole sums that become 8-bit results: see polysci_scales.  Products and sums are
 * rounded one by one, whatever a compiler may contract, so that every instruction set gives the same
 * bits.  Between its steps the
 * accumulators hold the bits of reals. */

/* acc = real(acc + offset + bias) * scale */
PS_INLINE void ps_scale(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const int used = ps_used(t, v);
        const ps_vec scale = ps_as_real(ps_int_load((const void *)(e->scale + v * PS_LANES), used));
        ps_int add = ps_int_load(e->offset + v * PS_LANES, used);
        if (e->bias)
            add = ps_int_add(add, ps_int_load(e->bias + v * PS_LANES, used));
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            ps_acc *sum = &acc[i * t.vecs + v];
            *sum = ps_as_int(ps_mul(ps_to_real(ps_int_add(*sum, add)), scale));
        }
    }
}

/* sum + (residual - zero) * scale */
PS_INLINE ps_acc ps_with(ps_acc sum, ps_vec residual, const polysci_scales *to)
{
    const ps_int whole = ps_int_add(ps_as_int(residual), ps_int_splat(-to->residual_zero));
    ps_vec real = ps_mul(ps_to_real(whole), ps_splat(to->residual_scale)), own = ps_as_real(sum);
    PS_ROUND(real);
    PS_ROUND(own);
    return ps_as_int(ps_add(own, real));
}

PS_INLINE void ps_add_scaled(ps_acc *acc, ps_tile t, const ps_y *residual, const polysci_scales *to)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        if (t.c_col == 1) {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                __asm__ volatile("" : : : "memory"); /* one row at a time */
                acc[i * t.vecs + v] = ps_with(acc[i * t.vecs + v], ps_fetch(t, residual, i, v), to);
            }
            continue;
        }
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            ps_vec x[PS_LANES];
            ps_gather(x, t, residual, first, v);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (first + i < t.rows) {
                    ps_acc *sum = &acc[(first + i) * t.vecs + v];
                    *sum = ps_with(*sum, x[i], to);
                }
        }
    }
}

PS_INLINE void ps_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    const float most = 0x1p30f; /* far beyond 8 bits; a zero point still fits beside it */
    ps_settle(acc, t);
    ps_scale(acc, t, e);
    if (e->residual)
        ps_add_scaled(acc, t, e->residual, e->to);
    if (e->clamp || e->to->y_zero < 0) { /* without, what is too low becomes INT32_MIN */
        const ps_vec lowest = ps_splat(e->clamp && e->clamp[0] > -most ? e->clamp[0] : -most);
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            acc[i] = ps_as_int(ps_max(lowest, ps_as_real(acc[i])));
    }
    const float high = e->clamp && e->clamp[1] < most ? e->clamp[1] : most;
    const ps_vec highest = ps_splat(high > -most ? high : -most);
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i)
        acc[i] = ps_to_int(ps_min(highest, ps_as_real(acc[i])));
    if (e->to->y_zero) {
        const ps_int y_zero = ps_int_splat(e->to->y_zero);
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            acc[i] = ps_int_add(acc[i], y_zero);
    }
    ps_put(acc, t, c, 0);
}
