/* Advanced SIMD with the dot products of bf16. */
PS_SCALAR int ps_has_neonbf16(void) { return ps_has_neondot() && ps_has_bits(0, 1 << 14); }
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_neonbf16
