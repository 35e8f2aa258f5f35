/* AVX-512 with f16: a broadcast converts in one instruction. */
#include <cpuid.h>

PS_SCALAR int ps_ask_avx512fp16(void)
{
    unsigned a, b, c, d;
    return ps_has_avx512bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1);
}

PS_SCALAR int ps_has_avx512fp16(void)
{
    static int answer;
    return ps_kept(&answer, ps_ask_avx512fp16);
}
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_avx512fp16
