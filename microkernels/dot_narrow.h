/* B has the type of x, which matrix instructions multiply; vectors of both are widened. */
typedef ps_x ps_b;
typedef ps_vec ps_wide;
enum { PS_WORD = 1, PS_HELD = 0 }; /* A comes from memory */
PS_SCALAR ps_b ps_b_of(ps_x w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_x_real(p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return ps_fma(a, b, sum); }
