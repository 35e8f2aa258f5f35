/* Probe of the tile unit, in place of the vector one: dots of 16 x 16 x 16 words on four sums. */

static PS_KERNEL double ps_probe_tiles(int64_t iterations)
{
    static const ps_tile t = {.rows = 32, .vecs = 2, .wrap = 32, .lanes = PS_LANES, .a_inner = 1};
    int configured = 0;
    if (!PS_CPU_OK())
        return 0;
    ps_tiles_configure(&configured, t);
    for (int64_t n = 0; n < iterations; ++n) {
        PS_UNROLL
        for (int i = 0; i < PS_SUMS; ++i)
            ps_tile_dot(i, PS_OF_A + i / 2, PS_OF_B + i % 2);
    }
    ps_tiles_release(&configured);
    return 2.0 * PS_SUMS * 16 * 16 * 16 * PS_WORD * (double)iterations;
}
#define ps_probe_peak ps_probe_tiles
