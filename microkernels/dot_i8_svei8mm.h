/* Four 8-bit numbers a lane, x of either sign. */
typedef int8_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 4, PS_HELD = 1, PS_FLIP = 0 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    const svint8_t w = svreinterpret_s8_s32(b);
    return PS_X_SIGNED ? svdot_s32(sum, svreinterpret_s8_s32(a), w)
                       : svusdot_s32(sum, svreinterpret_u8_s32(a), w);
}
