/* Advanced SIMD: 32-bit whole numbers, and narrow ones in memory. */

/* Whole numbers of 32 bits. */
typedef int32x4_t ps_int;

PS_INLINE ps_int ps_int_splat(int32_t x) { return vdupq_n_s32(x); }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    if (lanes >= PS_LANES)
        return vld1q_s32(p);
    const int32x2_t none = vdup_n_s32(0);
    if (lanes == 3)
        return vcombine_s32(vld1_s32(p), vld1_lane_s32(p + 2, none, 0));
    if (lanes == 2)
        return vcombine_s32(vld1_s32(p), none);
    return lanes == 1 ? vcombine_s32(vld1_lane_s32(p, none, 0), none) : vdupq_n_s32(0);
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    if (lanes >= PS_LANES)
        vst1q_s32(p, x);
    else if (lanes >= 2)
        vst1_s32(p, vget_low_s32(x));
    if (lanes == 3)
        vst1q_lane_s32(p + 2, x, 2);
    else if (lanes == 1)
        vst1q_lane_s32(p, x, 0);
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
PS_INLINE uint16x4_t ps_halves(const uint16_t *p, int lanes)
{
    uint16x4_t x = vdup_n_u16(0);
    if (lanes >= PS_LANES)
        return vld1_u16(p);
    if (lanes > 0)
        x = vld1_lane_u16(p, x, 0);
    if (lanes > 1)
        x = vld1_lane_u16(p + 1, x, 1);
    return lanes > 2 ? vld1_lane_u16(p + 2, x, 2) : x;
}
PS_INLINE void ps_put_halves(uint16_t *p, uint16x4_t x, int lanes)
{
    if (lanes >= PS_LANES) {
        vst1_u16(p, x);
        return;
    }
    if (lanes > 0)
        vst1_lane_u16(p, x, 0);
    if (lanes > 1)
        vst1_lane_u16(p + 1, x, 1);
    if (lanes > 2)
        vst1_lane_u16(p + 2, x, 2);
}
PS_INLINE uint8x8_t ps_bytes(const uint8_t *p, int lanes)
{
    uint8x8_t x = vdup_n_u8(0);
    if (lanes >= PS_LANES) {
        uint32_t all;
        __builtin_memcpy(&all, p, sizeof all);
        return vreinterpret_u8_u32(vset_lane_u32(all, vdup_n_u32(0), 0));
    }
    if (lanes > 0)
        x = vld1_lane_u8(p, x, 0);
    if (lanes > 1)
        x = vld1_lane_u8(p + 1, x, 1);
    return lanes > 2 ? vld1_lane_u8(p + 2, x, 2) : x;
}
PS_INLINE void ps_put_bytes(uint8_t *p, uint8x8_t x, int lanes)
{
    if (lanes >= PS_LANES) {
        const uint32_t all = vget_lane_u32(vreinterpret_u32_u8(x), 0);
        __builtin_memcpy(p, &all, sizeof all);
        return;
    }
    if (lanes > 0)
        vst1_lane_u8(p, x, 0);
    if (lanes > 1)
        vst1_lane_u8(p + 1, x, 1);
    if (lanes > 2)
        vst1_lane_u8(p + 2, x, 2);
}

PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    return vreinterpretq_f32_u32(vshll_n_u16(ps_halves(p, lanes), 16));
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t near = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    ps_put_halves(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), near, quiet), 16), lanes);
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(ps_halves(p, lanes)));
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    ps_put_halves(p, vreinterpret_u16_f16(vcvt_f16_f32(x)), lanes);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16(p)));
}
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(ps_bytes(p, lanes)))));
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    const int8x8_t x = vreinterpret_s8_u8(ps_bytes((const uint8_t *)p, lanes));
    return vmovl_s16(vget_low_s16(vmovl_s8(x)));
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    const int16x4_t narrow = vqmovn_s32(x);
    ps_put_bytes(p, vqmovun_s16(vcombine_s16(narrow, narrow)), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    const int16x4_t narrow = vqmovn_s32(x);
    const int8x8_t byte = vqmovn_s16(vcombine_s16(narrow, narrow));
    ps_put_bytes((uint8_t *)p, vreinterpret_u8_s8(byte), lanes);
}
