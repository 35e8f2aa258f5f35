/* Streaming reads of a buffer that lives in the level under test; returns the bytes. */
static PS_KERNEL double ps_probe_read(const float *from, int64_t size, int64_t iterations)
{
    ps_vec a = ps_zero(), b = ps_zero(), c = ps_zero(), d = ps_zero();
    _Alignas(64) float sink[PS_LANES];
    const int64_t step = 4 * PS_LANES, rounds = size / step;
    for (int64_t n = 0; n < iterations; ++n) {
        const float *p = from + n % rounds * step;
        a = ps_add(a, ps_load(p));
        b = ps_add(b, ps_load(p + PS_LANES));
        c = ps_add(c, ps_load(p + 2 * PS_LANES));
        d = ps_add(d, ps_load(p + 3 * PS_LANES));
    }
    ps_store(sink, ps_add(ps_add(a, b), ps_add(c, d)));
    return sink[0] == 0.0f ? 4.0 * (double)(step * iterations) : 0.0;
}

/*
 * The same of `blocks` blocks of `block` floats, each `jump` blocks behind the one before, from
 * block `*at` on, which becomes the next one: what earlier runs read is in no cache. `jump` and
 * `blocks` have no common divisor.
 */
static PS_KERNEL double ps_probe_read_blocks(const float *from, int64_t block, int64_t blocks,
                                             int64_t jump, int64_t *at, int64_t iterations)
{
    double bytes = 0.0;
    for (int64_t n = 0; n < iterations; ++n, *at = (*at + jump) % blocks)
        bytes += ps_probe_read(from + *at * block, block, block / (4 * PS_LANES));
    return bytes;
}
