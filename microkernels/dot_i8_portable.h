/* Any CPU: four 8-bit numbers a lane, x signed. */
typedef int8_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 4, PS_HELD = 1 }; /* A takes a register */
/* Signed by signed: an unsigned x is flipped to x - 128, which the offsets undo. */
enum { PS_FLIP = PS_X_SIGNED ? 0 : -0x80 };
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    for (int i = 0; i < PS_LANES; ++i)
        for (int shift = 0; shift < 32; shift += 8)
            sum[i] += (int8_t)(a[i] >> shift) * (int8_t)(b[i] >> shift);
    return sum;
}
