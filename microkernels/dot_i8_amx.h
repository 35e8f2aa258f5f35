/* Four 8-bit numbers a lane, x as it is: tiles multiply either sign. */
typedef int8_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 4, PS_HELD = 1, PS_FLIP = 0 };
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
/* Of vectors, which take an unsigned x only: x + 128, and what that adds taken off. */
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    const ps_int shift = ps_int_splat(PS_X_SIGNED ? (int32_t)0x80808080u : 0);
    const ps_int extra = _mm512_dpbusd_epi32(ps_int_splat(0), shift, b);
    return _mm512_sub_epi32(_mm512_dpbusd_epi32(sum, ps_int_xor(a, shift), b), extra);
}
