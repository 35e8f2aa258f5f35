/* Probes of a device, f32: what a work-item does in so many turns.  What they compute is stored, so
 * that compilers leave nothing out.  Places are counted in vectors, `mask` + 1 of them; an item
 * begins at `first` and takes `count`, a multiple of four, each `step` behind the one before. */

/* Multiplications, twelve of which wait for none of the others. */
PS_INLINE void ps_probe_products(const float *x, float *y, int64_t at, int64_t turns)
{
    enum { CHAINS = 12 };
    _Alignas(64) ps_vec acc[CHAINS];
    const ps_vec a = ps_load(x), b = ps_load(x + PS_LANES);
    PS_UNROLL
    for (int i = 0; i < CHAINS; ++i)
        acc[i] = ps_splat((float)i);
    for (int64_t n = 0; n < turns; ++n) {
        PS_UNROLL
        for (int i = 0; i < CHAINS; ++i)
            acc[i] = ps_fma(a, b, acc[i]);
    }
    PS_UNROLL
    for (int i = 1; i < CHAINS; ++i)
        acc[0] = ps_add(acc[0], acc[i]);
    ps_store(y + PS_LANES * at, acc[0]);
}

/* Reads of a buffer, from one end to the other in each turn. */
PS_INLINE void ps_probe_reads(const float *x, float *y, int64_t at, int64_t mask, int64_t first,
                              int64_t step, int64_t count, int64_t turns)
{
    _Alignas(64) ps_vec sum[4];
    PS_UNROLL
    for (int i = 0; i < 4; ++i)
        sum[i] = ps_splat((float)i);
    for (int64_t n = 0; n < turns; ++n) {
        int32_t place = (int32_t)first;
        for (int32_t done = 0; done < (int32_t)count; done += 4) {
            PS_UNROLL
            for (int i = 0; i < 4; ++i, place += (int32_t)step)
                sum[i] = ps_add(sum[i], ps_load_aligned(x + PS_LANES * (place & (int32_t)mask)));
        }
    }
    ps_store(y + PS_LANES * at, ps_add(ps_add(sum[0], sum[1]), ps_add(sum[2], sum[3])));
}

/* Writes of a buffer. */
PS_INLINE void ps_probe_writes(float *y, int64_t mask, int64_t first, int64_t step, int64_t count,
                               int64_t turns)
{
    for (int64_t n = 0; n < turns; ++n) {
        const ps_vec value = ps_splat((float)n);
        int32_t place = (int32_t)first;
        for (int32_t done = 0; done < (int32_t)count; ++done, place += (int32_t)step)
            ps_store(y + PS_LANES * (place & (int32_t)mask), value);
    }
}

/* Copies of one buffer to another. */
PS_INLINE void ps_probe_copies(const float *x, float *y, int64_t mask, int64_t first, int64_t step,
                               int64_t count, int64_t turns)
{
    for (int64_t n = 0; n < turns; ++n) {
        int32_t place = (int32_t)first;
        for (int32_t done = 0; done < (int32_t)count; ++done, place += (int32_t)step) {
            const int32_t own = PS_LANES * (place & (int32_t)mask);
            ps_store(y + own, ps_load_aligned(x + own));
        }
    }
}
