/* AVX-512 with the dot products of bf16. */
PS_SCALAR int ps_has_avx512bf16(void) { return ps_has_avx512vnni() && ps_cpu_has(PS_CPU_AVX512BF16); }
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_avx512bf16
