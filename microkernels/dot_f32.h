/* One f32 a lane. */
typedef float ps_b;
typedef ps_vec ps_wide;
enum { PS_WORD = 1, PS_HELD = 0 }; /* A comes from memory */
PS_SCALAR ps_b ps_b_of(ps_x w) { return ps_x_value(w); } /* w has the type of x */
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_load(p); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return ps_fma(a, b, sum); }
