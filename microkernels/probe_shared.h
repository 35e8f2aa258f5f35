/* Probes of a device: reads of the memory that the items of a group share. */

enum { PS_PROBED = 512 }; /* vectors */

/* Eight vectors in each turn, neighbours of those that the neighbours of an item read. */
PS_INLINE void ps_probe_shared(PS_LOCAL ps_shared *a, float *y, int64_t at, int64_t item,
                               int64_t items, int64_t turns)
{
    _Alignas(64) ps_vec sum[4];
    PS_UNROLL
    for (int i = 0; i < 4; ++i)
        sum[i] = ps_splat((float)i);
    for (int32_t i = (int32_t)item; i < PS_PROBED; i += (int32_t)items)
        ps_store_shared(a + PS_LANES * i, ps_splat((float)i));
    PS_BARRIER();
    for (int64_t n = 0; n < turns; ++n) {
        int32_t place = (int32_t)(item + n);
        PS_UNROLL
        for (int i = 0; i < 8; ++i, place += (int32_t)items) {
            const ps_vec x = ps_load_shared(a + PS_LANES * (place & (PS_PROBED - 1)));
            sum[i % 4] = ps_add(sum[i % 4], x);
        }
    }
    ps_store(y + PS_LANES * at, ps_add(ps_add(sum[0], sum[1]), ps_add(sum[2], sum[3])));
}
