/* Two bf16 a lane. VDPBF16PS rounds every sum to the nearest and takes denormals as zeros. */
typedef uint16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 0 }; /* A comes from memory */
PS_SCALAR ps_b ps_b_of(uint16_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
