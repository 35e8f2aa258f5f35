/* CPUs without vectors: whole numbers, and narrow ones in memory. */

/* A whole number of 32 bits. */
typedef int32_t ps_int;

PS_INLINE ps_int ps_int_splat(int32_t x) { return x; }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    ps_int x = 0;
    if (lanes > 0)
        __builtin_memcpy(&x, p, sizeof x); /* which may hold two numbers of 16 bits */
    return x;
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    if (lanes > 0)
        __builtin_memcpy(p, &x, sizeof x);
}
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return (ps_int)((uint32_t)x + (uint32_t)y); }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return x ^ y; }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return x > y ? x : y; }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return x < y ? x : y; }
/* To the nearest, ties to even; x < 2^31, and what is below -2^31 becomes INT32_MIN. */
#if defined(__ARM_FP) && defined(__thumb__) /* the FPU rounds so unless it is told otherwise */
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    float bits;
    ps_int y;
    __asm__("vcvtr.s32.f32 %0, %1" : "=t"(bits) : "t"(x));
    __builtin_memcpy(&y, &bits, sizeof y);
    return y;
}
#else
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    const float first_whole = 8388608.0f, size = x < 0 ? -x : x; /* 2^23 */
    const float whole = size < first_whole ? size + first_whole - first_whole : size;
    return x < -0x1p31f ? INT32_MIN : (int32_t)(x < 0 ? -whole : whole);
}
#endif
PS_INLINE ps_vec ps_to_real(ps_int x) { return (float)x; }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x)
{
    ps_vec y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
PS_INLINE ps_int ps_as_int(ps_vec x)
{
    ps_int y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

/* Narrow numbers in memory; zero for none. */
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes) { return lanes > 0 ? ps_bf16_value(*p) : 0; }
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    if (lanes > 0)
        *p = ps_bf16_of(x);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes) { return lanes > 0 ? ps_f16_value(*p) : 0; }
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    if (lanes > 0)
        *p = ps_f16_of(x);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_f16_value(*p); }
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes) { return lanes > 0 ? *p : 0; }
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes) { return lanes > 0 ? *p : 0; }
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    if (lanes > 0)
        *p = (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    if (lanes > 0)
        *p = (int8_t)(x < -128 ? -128 : x > 127 ? 127 : x);
}
/* Two numbers of 16 bits each: the sum of both products, added to z; SMLAD where there is one. */
#if defined(__ARM_FEATURE_DSP)
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z) { return __builtin_arm_smlad(x, y, z); }
#else
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    return z + (int16_t)x * (int16_t)y + (x >> 16) * (y >> 16);
}
#endif
