/* One f32 a lane; B holds f16, converted as it is loaded. */
typedef uint16_t ps_b;
typedef ps_vec ps_wide;
enum { PS_WORD = 1, PS_HELD = 0 }; /* A comes from memory */
PS_SCALAR ps_b ps_b_of(uint16_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_load_f16(p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return ps_fma(a, b, sum); }
