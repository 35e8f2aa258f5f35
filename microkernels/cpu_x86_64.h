/* What an x86 CPU can do and the system lets it do: CPUID and XGETBV, as Intel's Software Developer's
 * Manual has them (volume 2, CPUID; volume 1, 13.3).  In a guest each takes tens of microseconds. */
#include <cpuid.h>

enum {
    PS_CPU_KNOWN = 1,
    PS_CPU_AVX2 = 2, /* with FMA and F16C */
    PS_CPU_AVX512 = 4, /* F, BW, DQ and VL, and all of the above */
    PS_CPU_AVX2VNNI = 8,
    PS_CPU_AVX512VNNI = 16,
    PS_CPU_AVX512BF16 = 32,
    PS_CPU_AVX512FP16 = 64,
    PS_CPU_AMX = 128, /* all kinds of tiles; a process has to ask for them */
};

PS_SCALAR int ps_all_bits(unsigned bits, unsigned needed) { return (bits & needed) == needed; }

PS_SCALAR unsigned ps_ask_cpu(void)
{
    unsigned a, b, c, d, saved, high, found = PS_CPU_KNOWN;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !ps_all_bits(c, fma | osxsave | avx | f16c))
        return found;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0)); /* registers of threads */
    (void)high;
    if (!ps_all_bits(saved, 0x6) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1))
        return found;
    const unsigned most = a, b0 = b, c0 = c, d0 = d;
    found |= PS_CPU_AVX2;
    a = 0;
    if (most && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        found |= a >> 4 & 1 ? PS_CPU_AVX2VNNI : 0;
    if (!ps_all_bits(saved, 0xe0) || !ps_all_bits(b0, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31))
        return found;
    found |= PS_CPU_AVX512;
    found |= c0 >> 11 & 1 ? PS_CPU_AVX512VNNI : 0;
    found |= a >> 5 & 1 ? PS_CPU_AVX512BF16 : 0;
    found |= d0 >> 23 & 1 ? PS_CPU_AVX512FP16 : 0;
    found |= ps_all_bits(d0, 1u << 22 | 1u << 24 | 1u << 25) ? PS_CPU_AMX : 0;
    return found;
}

/* Whether the CPU has all of these; threads that ask at the same time get the same. */
PS_SCALAR int ps_cpu_has(unsigned needed)
{
    static unsigned answer;
    unsigned found = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (!found) {
        found = ps_ask_cpu();
        __atomic_store_n(&answer, found, __ATOMIC_RELAXED);
    }
    return ps_all_bits(found, needed);
}
