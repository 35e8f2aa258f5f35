/* AVX2 with the dot products of 8-bit numbers (AVX-VNNI). */
PS_SCALAR int ps_has_avx2vnni(void) { return ps_cpu_has(PS_CPU_AVX2VNNI); }
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_avx2vnni
