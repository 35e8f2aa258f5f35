/* Any CPU: 32-bit whole numbers, and narrow ones in memory. */

/* Whole numbers of 32 bits. */
typedef int32_t ps_int __attribute__((vector_size(16)));

PS_INLINE ps_int ps_int_splat(int32_t x) { return (ps_int){x, x, x, x}; }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    ps_int x = ps_int_splat(0);
    __builtin_memcpy(&x, p, (unsigned)lanes * sizeof *p);
    return x;
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    __builtin_memcpy(p, &x, (unsigned)lanes * sizeof *p);
}
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return x + y; }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return x ^ y; }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y)
{
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = x[i] > y[i] ? x[i] : y[i];
    return x;
}
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y)
{
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = x[i] < y[i] ? x[i] : y[i];
    return x;
}
/* To the nearest, ties to even; x < 2^31, and what is below -2^31 becomes INT32_MIN. */
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    ps_int y;
    for (int i = 0; i < PS_LANES; ++i) {
        const float first_whole = 8388608.0f, size = x[i] < 0 ? -x[i] : x[i]; /* 2^23 */
        const float whole = size < first_whole ? size + first_whole - first_whole : size;
        y[i] = x[i] < -0x1p31f ? INT32_MIN : (int32_t)(x[i] < 0 ? -whole : whole);
    }
    return y;
}
PS_INLINE ps_vec ps_to_real(ps_int x)
{
    return (ps_vec){(float)x[0], (float)x[1], (float)x[2], (float)x[3]};
}
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return (ps_vec)x; }
PS_INLINE ps_int ps_as_int(ps_vec x) { return (ps_int)x; }

/* Narrow numbers in memory; the first `lanes`, zeros behind them. */
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    ps_vec x = ps_zero();
    for (int i = 0; i < lanes; ++i)
        x[i] = ps_bf16_value(p[i]);
    return x;
}
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    for (int i = 0; i < lanes; ++i)
        p[i] = ps_bf16_of(x[i]);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    ps_vec x = ps_zero();
    for (int i = 0; i < lanes; ++i)
        x[i] = ps_f16_value(p[i]);
    return x;
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    for (int i = 0; i < lanes; ++i)
        p[i] = ps_f16_of(x[i]);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_splat(ps_f16_value(*p)); }
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    ps_int x = ps_int_splat(0);
    for (int i = 0; i < lanes; ++i)
        x[i] = p[i];
    return x;
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    ps_int x = ps_int_splat(0);
    for (int i = 0; i < lanes; ++i)
        x[i] = p[i];
    return x;
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    for (int i = 0; i < lanes; ++i)
        p[i] = (uint8_t)(x[i] < 0 ? 0 : x[i] > 255 ? 255 : x[i]);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    for (int i = 0; i < lanes; ++i)
        p[i] = (int8_t)(x[i] < -128 ? -128 : x[i] > 127 ? 127 : x[i]);
}
/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    for (int i = 0; i < PS_LANES; ++i)
        z[i] += (int16_t)x[i] * (int16_t)y[i] + (x[i] >> 16) * (y[i] >> 16);
    return z;
}
