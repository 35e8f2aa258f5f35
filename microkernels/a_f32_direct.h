/* A is x, converted to f32 as it is loaded. */
typedef ps_x ps_a;
PS_SCALAR ps_a ps_a_of(ps_x x) { return x; }
PS_INLINE ps_wide ps_word(const ps_a *p) { return ps_x_splat(p); }
PS_INLINE ps_wide ps_word_first(const ps_a *p, int n) { return (void)n, ps_x_splat(p); }
PS_INLINE ps_wide ps_beside(const ps_a *p, int lanes) { return ps_x_real(p, lanes); }
PS_INLINE ps_wide ps_filling(int32_t zero) { return (void)zero, ps_zero(); }
/* From the lanes of ps_x_bits. */
PS_INLINE void ps_a_store(ps_a *p, ps_vec x, int lanes) { ps_x_store(p, x, lanes); }
/* Two vectors beside each other, as even and odd elements. */
enum { PS_PAIRS = PS_X_PAIRS };
PS_INLINE void ps_beside_pair(const ps_a *p, int lanes, ps_wide *pair)
{
    ps_x_pair(p, lanes, &pair[0], &pair[1]);
}
PS_INLINE void ps_interleave_pair(ps_vec *even, ps_vec *odd) { ps_x_interleave(even, odd); }
