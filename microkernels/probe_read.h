/* Streaming reads of a buffer that lives in the level under test; returns the bytes. */
static PS_KERNEL double ps_probe_read(const float *from, int64_t size, int64_t iterations)
{
    ps_vec a = ps_zero(), b = ps_zero(), c = ps_zero(), d = ps_zero();
    float sink[PS_LANES];
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
