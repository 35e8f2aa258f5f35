/* Probes of a machine: each does `iterations` rounds and returns the flops, or the bytes, of them. */

/* FMAs on independent accumulators: nothing but the units' rate. */
static PS_KERNEL double ps_probe_peak(int64_t iterations)
{
    enum { CHAINS = 12 };
    ps_vec acc[CHAINS];
    const ps_vec x = ps_splat(0.5f), y = ps_splat(1.0f);
    float sink[PS_LANES];
    PS_UNROLL
    for (int i = 0; i < CHAINS; ++i)
        acc[i] = ps_splat((float)i);
    for (int64_t n = 0; n < iterations; ++n) {
        PS_UNROLL
        for (int i = 0; i < CHAINS; ++i)
            acc[i] = ps_fma(acc[i], x, y);
    }
    ps_vec sum = acc[0];
    PS_UNROLL
    for (int i = 1; i < CHAINS; ++i)
        sum = ps_add(sum, acc[i]);
    ps_store(sink, sum);
    return sink[0] > 0.0f ? 2.0 * CHAINS * PS_LANES * (double)iterations : 0.0;
}

/* Write a buffer, so that its pages exist and the compiler cannot know what it holds. */
static void ps_probe_fill(float *buffer, int64_t size)
{
    for (int64_t i = 0; i < size; ++i)
        buffer[i] = 0.0f;
    __asm__ volatile("" : : "r"(buffer) : "memory");
}

/* Streaming reads of a buffer that lives in the level under test. */
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
