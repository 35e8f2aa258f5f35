/* AVX2 with the dot products of 8-bit numbers (AVX-VNNI). */
#include <cpuid.h>

PS_SCALAR int ps_ask_avx2vnni(void)
{
    unsigned a, b, c, d;
    return ps_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

PS_SCALAR int ps_has_avx2vnni(void)
{
    static int answer;
    return ps_kept(&answer, ps_ask_avx2vnni);
}
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_avx2vnni
