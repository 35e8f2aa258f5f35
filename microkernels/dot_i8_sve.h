/* Four 8-bit numbers a lane, x signed. */
typedef int8_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 4, PS_HELD = 1 }; /* A takes a register */
/* The unit takes signed by signed: an unsigned x is flipped to x - 128, which the offsets undo. */
enum { PS_FLIP = PS_X_SIGNED ? 0 : -0x80 };
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    return svdot_s32(sum, svreinterpret_s8_s32(a), svreinterpret_s8_s32(b));
}
