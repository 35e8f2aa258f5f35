/* Two 16-bit numbers a lane: 8-bit ones, widened, whose lower bytes are multiplied, four products a
 * lane; the upper bytes of B count as zeros. */
typedef int16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 1 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p)
{
    return svand_n_s32_x(PS_ALL, ps_int_load((const void *)p, PS_LANES), 0xff00ff);
}
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    const svint8_t w = svreinterpret_s8_s32(b);
    return PS_X_SIGNED ? svdot_s32(sum, svreinterpret_s8_s32(a), w)
                       : svusdot_s32(sum, svreinterpret_u8_s32(a), w);
}
