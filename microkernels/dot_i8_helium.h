/* Four 8-bit numbers a lane, x signed; their products are those of brgemm_i8_helium.h. */
typedef int8_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 4, PS_HELD = 1 }; /* A takes a register */
/* The unit takes signed by signed: an unsigned x is flipped to x - 128, which the offsets undo. */
enum { PS_FLIP = PS_X_SIGNED ? 0 : -0x80 };
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return vreinterpretq_s32_s8(vldrbq_s8(p)); }
/* The products of a lane: as 16-bit pairs, the even ones and the odd ones. */
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
    const ps_int even = vreinterpretq_s32_s16(vmovlbq_s8(x));
    const ps_int odd = vreinterpretq_s32_s16(vmovltq_s8(x));
    sum = ps_pairs(even, vreinterpretq_s32_s16(vmovlbq_s8(y)), sum);
    return ps_pairs(odd, vreinterpretq_s32_s16(vmovltq_s8(y)), sum);
}
