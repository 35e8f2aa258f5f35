/* One f32 a lane; B are bytes of blocks, which blocks.h reads. */
typedef uint8_t ps_b;
typedef ps_vec ps_wide;
enum { PS_WORD = 1, PS_HELD = 0 }; /* A comes from memory */
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_w_real(ps_w_load(p), 0); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return ps_fma(a, b, sum); }
/* Numbers of a panel lie as in w. */
PS_SCALAR void ps_w_pack(ps_b *restrict to, const uint8_t *restrict w)
{
    __builtin_memcpy(to, w, PS_W_STEPS * PS_W_BITS / 8);
}
