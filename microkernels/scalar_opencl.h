/* OpenCL C: one number at a time.  No device needs arithmetic of halves for its conversions. */
PS_SMALL uint32_t ps_bits_of(float x) { return as_uint(x); }
PS_SMALL float ps_float_of(uint32_t bits) { return as_float(bits); }
#ifndef PS_NO_DOUBLE
PS_SMALL uint64_t ps_wide_bits_of(double x) { return as_ulong(x); }
#endif
PS_SMALL float ps_bf16_value(uint16_t x) { return as_float((uint32_t)x << 16); }
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_SMALL uint16_t ps_bf16_of(float x)
{
    const uint32_t bits = as_uint(x), last = bits >> 16 & 1u;
    const uint32_t rounded = isnan(x) ? bits | 0x400000u : bits + 0x7fffu + last;
    return (uint16_t)(rounded >> 16);
}
PS_SMALL float ps_f16_value(uint16_t x) { return vload_half(0, (const half *)&x); }
/* To the nearest, ties to even. */
PS_SMALL uint16_t ps_f16_of(float x)
{
    uint16_t y;
    vstore_half_rte(x, 0, (half *)&y);
    return y;
}
