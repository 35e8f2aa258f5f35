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

/* acc += beta * residual: where beta is not 1, vector by vector, so that one register holds it. */
PS_INLINE void ps_add_residual(ps_acc *acc, ps_tile t, const ps_y *residual, float beta)
{
    if (beta == 1) {
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
        acc[i] = ps_add(acc[i], ps_mul(x, ps_splat(beta)));
    }
}

/* The bits of some lanes, up to 8 or all, whose first one is at a place in memory. */
PS_INLINE int ps_bits_at(const uint8_t *bits, int64_t place, int lanes)
{
    bits += place / 8;
    return lanes > 8 ? bits[0] | bits[1] << 8 : bits[0] >> place % 8;
}

PS_INLINE void ps_put_bits(uint8_t *bits, int64_t place, int lanes, int x)
{
    bits += place / 8;
    bits[0] = (uint8_t)(place % 8 ? bits[0] | x << place % 8 : x);
    if (lanes > 8)
        bits[1] = (uint8_t)(x >> 8);
}

/* Results whose bit of `gate` is 0 become 0. */
PS_INLINE void ps_close(ps_acc *acc, ps_tile t, const uint8_t *gate)
{
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i) {
        const int64_t place = ps_c_row(t, i / t.vecs) + i % t.vecs * PS_LANES;
        acc[i] = ps_keep(acc[i], ps_bits_at(gate, place, ps_used(t, i % t.vecs)));
    }
}

/* The bits of `mask` for all results. */
PS_INLINE void ps_put_mask(const ps_acc *acc, ps_tile t, uint8_t *mask)
{
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i) {
        const int64_t place = ps_c_row(t, i / t.vecs) + i % t.vecs * PS_LANES;
        ps_put_bits(mask, place, ps_used(t, i % t.vecs), ps_positive(acc[i]));
    }
}

PS_INLINE ps_vec ps_load_used(const float *p, ps_tile t, int v)
{
    p += v * PS_LANES;
    return ps_used(t, v) == PS_LANES ? ps_load(p) : ps_load_first(p, ps_used(t, v));
}

PS_INLINE void ps_store_used(float *p, ps_tile t, int v, ps_vec x)
{
    p += v * PS_LANES;
    if (ps_used(t, v) == PS_LANES)
        ps_store(p, x);
    else
        ps_store_first(p, x, ps_used(t, v));
}

/* Planes of `channels` numbers, from the tile's first one on, gain its results.  They hold: how many
 * there were; minus a number near all of them, the first tile's mean; the sums of their differences
 * from it and of the squares of these.  All are 0 at first.  Chan, Golub and LeVeque, Algorithms for
 * Computing the Sample Variance (1983), section 2: shifted data. */
PS_INLINE void ps_add_moments(const ps_acc *acc, ps_tile t, float *count, int64_t channels)
{
    float *minus = count + channels, *sums = minus + channels, *squares = sums + channels;
    const float before = count[0];
    if (before == 0) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            ps_vec mean = acc[v];
            PS_UNROLL
            for (int i = 1; i < t.rows; ++i)
                mean = ps_add(mean, acc[i * t.vecs + v]);
            ps_store_used(minus, t, v, ps_mul(mean, ps_splat(-1 / (float)t.rows)));
        }
    }
    const ps_vec all = ps_splat(before + (float)t.rows);
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        const ps_vec middle = ps_load_used(minus, t, v);
        ps_vec sum = ps_zero(), square = sum;
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const ps_vec apart = ps_add(acc[i * t.vecs + v], middle);
            sum = ps_add(sum, apart);
            square = ps_fma(apart, apart, square);
        }
        ps_store_used(count, t, v, all);
        ps_store_used(sums, t, v, ps_add(sum, ps_load_used(sums, t, v)));
        ps_store_used(squares, t, v, ps_add(square, ps_load_used(squares, t, v)));
    }
}

PS_INLINE void ps_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_settle(acc, t);
    if (e)
        ps_times_alpha(acc, t, e->alpha);
    if (e && e->bias) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_vec x = ps_load_used(e->bias, t, v);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], x);
        }
    }
    if (e && e->residual)
        ps_add_residual(acc, t, e->residual, e->beta);
    if (e && e->gate)
        ps_close(acc, t, e->gate);
    if (e)
        ps_activate(acc, t.rows * t.vecs, e->activation);
    if (e && e->clamp)
        ps_clamp(acc, t, e->clamp);
    if (e && e->mask)
        ps_put_mask(acc, t, e->mask);
    ps_put(acc, t, c, t.stream && e && e->aligned);
    if (e && e->moments)
        ps_add_moments(acc, t, e->moments, e->channels);
}
