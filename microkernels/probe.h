/* Probes of a machine: each does `iterations` rounds and returns the flops of them. */
#include <stddef.h>

/* Multiplications on independent accumulators: nothing but the units' rate. */
static PS_KERNEL double ps_probe_peak(int64_t iterations)
{
    enum { CHAINS = 12 };
    _Alignas(64) ps_acc acc[CHAINS];
    _Alignas(64) float ones[2 * PS_LANES], sink[PS_LANES];
    for (int i = 0; i < 2 * PS_LANES; ++i) /* 0.5 in any float type's high half, and its bits */
        ones[i] = 0.5f;
    __asm__ volatile("" : : "r"(ones) : "memory");
    const ps_wide x = ps_panel((const void *)ones), y = ps_panel((const void *)(ones + PS_LANES));
    PS_UNROLL
    for (int i = 0; i < CHAINS; ++i)
        acc[i] = ps_acc_of(ps_splat((float)i));
    for (int64_t n = 0; n < iterations; ++n) {
        PS_UNROLL
        for (int i = 0; i < CHAINS; ++i)
            acc[i] = ps_dot(x, y, acc[i]);
    }
    ps_acc sum = acc[0];
    PS_UNROLL
    for (int i = 1; i < CHAINS; ++i)
        sum = ps_acc_add(sum, acc[i]);
    ps_store(sink, ps_acc_bits(sum));
    __asm__ volatile("" : : "r"(sink) : "memory");
    return 2.0 * CHAINS * PS_LANES * PS_WORD * (double)iterations;
}

/* Write a buffer, so that its pages exist and the compiler cannot know what it holds. */
static void ps_probe_fill(void *buffer, size_t size)
{
    __builtin_memset(buffer, 0, size);
    __asm__ volatile("" : : "r"(buffer) : "memory");
}

/* Tell the compiler that something reads a buffer, so that what writes it stays. */
static inline void ps_probe_keep(const void *buffer)
{
    __asm__ volatile("" : : "r"(buffer) : "memory");
}
