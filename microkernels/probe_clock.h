/* Multiplications that wait for one another: each takes the cycles of one, whatever else the core
 * does, so a round's time tells the clock's rate while it multiplies.  Returns the rounds. */
static PS_KERNEL double ps_probe_clock(int64_t iterations)
{
    _Alignas(64) float ones[2 * PS_LANES], sink[PS_LANES];
    for (int i = 0; i < 2 * PS_LANES; ++i)
        ones[i] = 0.5f;
    __asm__ volatile("" : : "r"(ones) : "memory");
    const ps_wide x = ps_panel((const void *)ones), y = ps_panel((const void *)(ones + PS_LANES));
    ps_acc acc = ps_acc_of(ps_splat(0.0f));
    for (int64_t n = 0; n < iterations; ++n) {
        PS_UNROLL
        for (int i = 0; i < 8; ++i)
            acc = ps_dot(x, y, acc);
    }
    ps_store(sink, ps_acc_bits(acc));
    __asm__ volatile("" : : "r"(sink) : "memory");
    return (double)iterations;
}
