/* A is x widened to 16 bits while it is packed. */
typedef int16_t ps_a;
enum { PS_FLIP = 0 };
PS_SCALAR ps_a ps_a_of(ps_x x) { return x; }
PS_INLINE ps_wide ps_word(const ps_a *p)
{
    return ps_wide_of(ps_int_splat(p[0]), ps_int_splat(p[1]));
}
PS_INLINE ps_wide ps_word_first(const ps_a *p, int n)
{
    return (void)n, ps_wide_of(ps_int_splat(*p), ps_int_splat(0));
}
PS_INLINE ps_wide ps_beside(const ps_a *p, int lanes)
{
    return ps_wide_of(ps_load_s16(p, lanes), ps_int_splat(0));
}
PS_INLINE ps_wide ps_filling(int32_t zero)
{
    return ps_wide_of(ps_int_splat(zero), ps_int_splat(zero));
}
/* From the lanes of ps_x_bits. */
PS_INLINE void ps_a_store(ps_a *p, ps_vec x, int lanes) { ps_store_s16(p, ps_as_int(x), lanes); }
enum { PS_PAIRS = 0 };
PS_INLINE void ps_beside_pair(const ps_a *p, int lanes, ps_wide *pair)
{
    pair[0] = pair[1] = ps_beside(p, lanes < PS_LANES ? lanes : PS_LANES);
}
PS_INLINE void ps_interleave_pair(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
