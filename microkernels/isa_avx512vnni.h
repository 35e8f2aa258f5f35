/* AVX-512 with the dot products of 8-bit numbers. */
PS_SCALAR int ps_has_avx512vnni(void) { return ps_cpu_has(PS_CPU_AVX512 | PS_CPU_AVX512VNNI); }
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_avx512vnni
