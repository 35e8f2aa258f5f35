/* Two 16-bit numbers a lane: 8-bit ones, widened, so that no sum of products overflows. */
typedef int16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 1 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
/* The first ones of all lanes, then the second ones: once a vector of B, not once a row. */
PS_INLINE ps_wide ps_panel(const ps_b *p)
{
    const int32x4_t pairs = vreinterpretq_s32_s16(vld1q_s16(p));
    return vreinterpretq_s32_s16(vcombine_s16(vmovn_s32(pairs), vshrn_n_s32(pairs, 16)));
}
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    const int16x8_t parts = vreinterpretq_s16_s32(b);
    sum = vmlal_s16(sum, vmovn_s32(a), vget_low_s16(parts));
    return vmlal_s16(sum, vshrn_n_s32(a, 16), vget_high_s16(parts));
}
