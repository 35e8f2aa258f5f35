/* Two 16-bit numbers a lane: 8-bit ones, widened, whose lower bytes are multiplied, four products a
 * lane; the upper bytes of B count as zeros. */
typedef int16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 1 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
/* Beside an unsigned x numbers become unsigned as well, w + 128. */
enum { PS_W_FLIP = PS_X_SIGNED ? 0 : 0x800080 };
PS_INLINE ps_wide ps_panel(const ps_b *p)
{
    const ps_int w = ps_int_load((const void *)p, PS_LANES);
    return svand_n_s32_x(PS_ALL, sveor_n_s32_x(PS_ALL, w, PS_W_FLIP), 0xff00ff);
}
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    if (PS_X_SIGNED)
        return svdot_s32(sum, svreinterpret_s8_s32(a), svreinterpret_s8_s32(b));
    const svuint8_t x = svreinterpret_u8_s32(a), w = svreinterpret_u8_s32(b);
    const svuint32_t all = svdot_u32(svreinterpret_u32_s32(sum), x, w);
    const svuint8_t by = svreinterpret_u8_s32(svdup_n_s32(PS_W_FLIP));
    return svreinterpret_s32_u32(svsub_u32_x(PS_ALL, all, svdot_u32(svdup_n_u32(0), x, by)));
}
