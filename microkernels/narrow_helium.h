/* Helium: 32-bit whole numbers, and narrow ones in memory, which loads widen and stores narrow. */

/* Whole numbers of 32 bits. */
typedef int32x4_t ps_int;

PS_INLINE ps_int ps_int_splat(int32_t x) { return vdupq_n_s32(x); }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    return lanes >= PS_LANES ? vldrwq_s32(p) : vldrwq_z_s32(p, ps_first(lanes));
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    if (lanes >= PS_LANES)
        vstrwq_s32(p, x);
    else
        vstrwq_p_s32(p, x, ps_first(lanes));
}
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return vaddq_s32(x, y); }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return veorq_s32(x, y); }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return vmaxq_s32(x, y); }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return vminq_s32(x, y); }
/* To the nearest, ties to even; beyond s32 the nearest s32, and 0 for a NaN. */
PS_INLINE ps_int ps_to_int(ps_vec x) { return vcvtnq_s32_f32(x); }
PS_INLINE ps_vec ps_to_real(ps_int x) { return vcvtq_f32_s32(x); }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return vreinterpretq_f32_s32(x); }
PS_INLINE ps_int ps_as_int(ps_vec x) { return vreinterpretq_s32_f32(x); }

/* Narrow numbers in memory: the first `lanes`, zeros behind them. */
PS_INLINE uint32x4_t ps_halves(const uint16_t *p, int lanes)
{
    return lanes >= PS_LANES ? vldrhq_u32(p) : vldrhq_z_u32(p, ps_first(lanes));
}
/* The low half of each lane. */
PS_INLINE void ps_put_halves(uint16_t *p, uint32x4_t x, int lanes)
{
    if (lanes >= PS_LANES)
        vstrhq_u32(p, x);
    else
        vstrhq_p_u32(p, x, ps_first(lanes));
}
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(ps_halves(p, lanes), 16));
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t near = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    ps_put_halves(p, vshrq_n_u32(vpselq_u32(near, quiet, vcmpeqq_f32(x, x)), 16), lanes);
}
/* The same as ps_f16_value, lane by lane: as of binutils 2.40 the assembler names other registers in VCVTB
 * and VCVTT than it is told. */
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    const ps_int x = vreinterpretq_s32_u32(ps_halves(p, lanes));
    const ps_int size = vshlq_n_s32(vandq_s32(x, vdupq_n_s32(0x7fff)), 13);
    const ps_int sign = vshlq_n_s32(vandq_s32(x, vdupq_n_s32(0x8000)), 16);
    const ps_vec near = ps_as_real(vaddq_s32(size, vdupq_n_s32(0x38800000)));
    const ps_int small = ps_as_int(vsubq_f32(near, vdupq_n_f32(0x1p-14f)));
    const ps_int whole = vaddq_s32(size, vdupq_n_s32(0x38000000));
    const ps_int endless = vorrq_s32(size, vdupq_n_s32(0x7f800000));
    const ps_int quiet = vorrq_s32(endless, vdupq_n_s32(0x400000)); /* a NaN */
    const mve_pred16_t is_nan = vcmpgtq_n_s32(size, 0x7c00 << 13);
    const mve_pred16_t is_endless = vcmpgeq_n_s32(size, 0x7c00 << 13);
    const ps_int finite = vpselq_s32(small, whole, vcmpltq_n_s32(size, 0x400 << 13));
    const ps_int all = vpselq_s32(vpselq_s32(quiet, endless, is_nan), finite, is_endless);
    return ps_as_real(vorrq_s32(sign, all));
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    for (int i = 0; i < lanes && i < PS_LANES; ++i)
        p[i] = ps_f16_of(x[i]);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_splat(ps_f16_value(*p)); }
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    return vreinterpretq_s32_u32(lanes >= PS_LANES ? vldrbq_u32(p) : vldrbq_z_u32(p, ps_first(lanes)));
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    return lanes >= PS_LANES ? vldrbq_s32(p) : vldrbq_z_s32(p, ps_first(lanes));
}
/* The lowest byte of each lane. */
PS_INLINE void ps_put_bytes(int8_t *p, ps_int x, int lanes)
{
    if (lanes >= PS_LANES)
        vstrbq_s32(p, x);
    else
        vstrbq_p_s32(p, x, ps_first(lanes));
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    const ps_int least = vmaxq_s32(x, vdupq_n_s32(0));
    ps_put_bytes((int8_t *)p, vminq_s32(least, vdupq_n_s32(255)), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    const ps_int least = vmaxq_s32(x, vdupq_n_s32(-128));
    ps_put_bytes(p, vminq_s32(least, vdupq_n_s32(127)), lanes);
}
/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(y);
    return vaddq_s32(vaddq_s32(z, vmullbq_int_s16(a, b)), vmulltq_int_s16(a, b));
}
