/* Advanced SIMD with the dot products of 8-bit numbers. */
PS_SCALAR int ps_has_neondot(void) { return ps_has_neon() && ps_has_bits(1 << 20, 0); }
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_neondot
