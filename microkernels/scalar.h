/* One number at a time, for packing and where a vector unit lacks the conversion: bf16 and f16. */
PS_SMALL uint32_t ps_bits_of(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
PS_SMALL float ps_float_of(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
PS_SMALL uint64_t ps_wide_bits_of(double x)
{
    uint64_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
PS_SMALL float ps_bf16_value(uint16_t x) { return ps_float_of((uint32_t)x << 16); }
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_SMALL uint16_t ps_bf16_of(float x)
{
    const uint32_t bits = ps_bits_of(x);
    if (x != x)
        return (uint16_t)((bits | 0x400000u) >> 16);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
PS_SMALL float ps_f16_value(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, size = x & 0x7fff;
    if (size >= 0x7c00) /* infinite, or a NaN, which becomes quiet */
        return ps_float_of(sign | 0x7f800000u | size << 13 | (size > 0x7c00 ? 0x400000u : 0));
    if (size < 0x400) /* a denormal counts in units of 2^-24: no f32 on the way is one */
        return ps_float_of(sign | ps_bits_of(ps_float_of(0x38800000u + (size << 13)) - 0x1p-14f));
    return ps_float_of(sign | (0x38000000u + (size << 13)));
}
/* To the nearest, ties to even. */
PS_SMALL uint16_t ps_f16_of(float x)
{
    const uint32_t bits = ps_bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) /* a denormal: the sum's last bit is 2^-24 */
        return (uint16_t)(sign | (ps_bits_of(ps_float_of(size) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13));
}
