/* AVX-512 with f16: a broadcast converts in one instruction. */
PS_SCALAR int ps_has_avx512fp16(void) { return ps_has_avx512bf16() && ps_cpu_has(PS_CPU_AVX512FP16); }
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_avx512fp16
