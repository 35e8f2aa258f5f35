/* The epilogue of whole sums that become 8-bit results: see polysci_scales.  Products and sums are
 * rounded one by one, whatever a compiler may contract, so that every instruction set gives the same
 * bits.  Between its steps the
 * accumulators hold the bits of reals. */

/* What a clamp and the conversion to 32 bits need, in `limits`; null where the narrowing to 8 bits
 * does all of it: scales below 1/2 keep sums below 2^30. */
static PS_KERNEL __attribute__((unused)) const float *
ps_limits(float *limits, const float *clamp, const polysci_scales *to, int64_t channels)
{
    const float most = 0x1p30f; /* far beyond 8 bits; a zero point still fits beside it */
    const float low = clamp && clamp[0] > -most ? clamp[0] : -most;
    const float high = clamp && clamp[1] < most ? clamp[1] : most;
    int far = __builtin_fabsf(to->residual_scale) > 0x1p20f;
    for (int64_t i = 0; i < channels; ++i)
        far |= __builtin_fabsf(to->scale[i]) >= 0.5f;
    const float zero = (float)to->y_zero;
    if (!far && low + zero <= (float)PS_Y_LEAST && high + zero >= (float)PS_Y_MOST)
        return 0;
    limits[0] = low, limits[1] = high > -most ? high : -most;
    return limits;
}

/* offset + bias of vector v */
PS_INLINE ps_int ps_start_of(ps_tile t, const ps_epilogue *e, int v)
{
    const ps_int add = ps_int_load(e->offset + v * PS_LANES, ps_used(t, v));
    if (!e->bias)
        return add;
    return ps_int_add(add, ps_int_load(e->bias + v * PS_LANES, ps_used(t, v)));
}

/* ps_begin of a tile with `begun`: loads cost no slot of the units that add. */
PS_INLINE void ps_begin_offset(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    const int count = t.rows * t.vecs;
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const ps_int start = ps_start_of(t, e, v);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i)
            acc[i * t.vecs + v] = start;
    }
    PS_UNROLL
    for (int i = count; i < count * t.shifts; ++i)
        acc[i] = ps_acc_zero();
}

/* acc = real(acc + offset + bias) * scale */
PS_INLINE void ps_shift_sums(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const int used = ps_used(t, v);
        const ps_vec scale = ps_as_real(ps_int_load((const void *)(e->scale + v * PS_LANES), used));
        const ps_int add = t.begun ? ps_int_splat(0) : ps_start_of(t, e, v);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            ps_acc *sum = &acc[i * t.vecs + v];
            const ps_int whole = t.begun ? *sum : ps_int_add(*sum, add);
            *sum = ps_as_int(ps_mul(ps_to_real(whole), scale));
        }
    }
}

/* sum + (residual - zero) * scale */
PS_INLINE ps_acc ps_with(ps_acc sum, ps_vec residual, const ps_epilogue *e)
{
    const ps_int whole = ps_int_add(ps_as_int(residual), ps_int_splat(-e->to->residual_zero));
    const ps_vec scale = ps_splat(e->to->residual_scale);
    ps_vec real = ps_mul(ps_to_real(whole), scale), own = ps_as_real(sum);
    PS_ROUND(real);
    PS_ROUND(own);
    return ps_as_int(ps_add(own, real));
}

PS_INLINE void ps_add_residual(ps_acc *acc, ps_tile t, const ps_y *residual, const ps_epilogue *e)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        if (t.c_col == 1) {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                PS_RELOAD(); /* one row at a time */
                acc[i * t.vecs + v] = ps_with(acc[i * t.vecs + v], ps_fetch(t, residual, i, v), e);
            }
            continue;
        }
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            _Alignas(64) ps_vec x[PS_LANES];
            ps_gather(x, t, residual, first, v);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (first + i < t.rows) {
                    ps_acc *sum = &acc[(first + i) * t.vecs + v];
                    *sum = ps_with(*sum, x[i], e);
                }
        }
    }
}

/* Store a tile of results whose columns are neighbours, PS_8BIT_WIDE vectors at a time: of one row, or
 * of several. */
PS_INLINE void ps_put_narrow(ps_acc *acc, ps_tile t, ps_y *c)
{
    enum { WIDE = PS_8BIT_WIDE };
    const int count = t.rows * t.vecs, whole = t.lanes == PS_LANES;
    const int together = whole && t.vecs % 4 == 0 ? 4 : whole && t.vecs % 2 == 0 ? 2 : 1;
    PS_UNROLL
    for (int first = 0; first < count; first += WIDE) {
        _Alignas(64) ps_vec x[WIDE];
        _Alignas(64) ps_y *to[WIDE];
        _Alignas(64) int used[WIDE];
        PS_UNROLL
        for (int i = 0; i < WIDE; ++i) {
            const int real = first + i < count, at = real ? first + i : first, v = at % t.vecs;
            x[i] = ps_acc_bits(acc[at]);
            to[i] = c + ps_c_row(t, at / t.vecs) + v * PS_LANES;
            used[i] = real ? ps_used(t, v) : 0;
        }
        ps_y_store_all(to, x, used, together);
    }
}

/* What is done behind a residual; e->clamp is what ps_limits says. */
PS_INLINE void ps_finish(ps_acc *acc, ps_tile t, const ps_epilogue *e)
{
    if (e->clamp) {
        const ps_vec lowest = ps_splat(e->clamp[0]), highest = ps_splat(e->clamp[1]);
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            acc[i] = ps_as_int(ps_min(highest, ps_max(lowest, ps_as_real(acc[i]))));
    }
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i)
        acc[i] = ps_to_int(ps_as_real(acc[i]));
    if (e->to->y_zero) {
        const ps_int y_zero = ps_int_splat(e->to->y_zero);
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i)
            acc[i] = ps_int_add(acc[i], y_zero);
    }
}

PS_INLINE void ps_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_settle(acc, t);
    ps_shift_sums(acc, t, e);
    if (e->residual)
        ps_add_residual(acc, t, e->residual, e);
    ps_finish(acc, t, e);
    if (t.c_col == 1)
        ps_put_narrow(acc, t, c);
    else
        ps_put(acc, t, c, 0);
}
