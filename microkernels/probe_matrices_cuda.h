/* CUDA C++: products of matrices by a warp, 16 rows, 8 columns and 16 steps each; eight of them wait
 * for none of the others. */
PS_INLINE void ps_probe_matrices(float *y, int64_t at, int64_t turns)
{
    enum { CHAINS = 8 };
    ps_acc low[CHAINS], high[CHAINS];
    const uint32_t a[4] = {0x3c003c00u, 0x38003800u, 0x3c003800u, (uint32_t)at & 0x3c00u};
    const uint32_t b[2] = {0x38003c00u, 0x3c003800u};
    PS_UNROLL
    for (int i = 0; i < CHAINS; ++i)
        low[i] = high[i] = ps_splat((float)i);
    for (int64_t n = 0; n < turns; ++n) {
        PS_UNROLL
        for (int i = 0; i < CHAINS; ++i)
            ps_mma(&low[i], &high[i], a, b);
    }
    PS_UNROLL
    for (int i = 0; i < CHAINS; ++i)
        low[0] = ps_add(low[0], ps_add(low[i], high[i]));
    ps_store(y + PS_LANES * at, low[0]);
}
