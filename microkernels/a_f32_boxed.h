/* A is f32: x itself, or x converted while it is packed. */
typedef float ps_a;
PS_SCALAR ps_a ps_a_of(ps_x x) { return ps_x_value(x); }
PS_INLINE ps_wide ps_word(const ps_a *p) { return ps_splat(*p); }
PS_INLINE ps_wide ps_word_first(const ps_a *p, int n) { return (void)n, ps_splat(*p); }
PS_INLINE ps_wide ps_beside(const ps_a *p, int lanes)
{
    return lanes == PS_LANES ? ps_load(p) : ps_load_first(p, lanes);
}
PS_INLINE ps_wide ps_filling(int32_t zero) { return (void)zero, ps_zero(); }
/* From the lanes of ps_x_bits. */
PS_INLINE void ps_a_store(ps_a *p, ps_vec x, int lanes)
{
    if (lanes == PS_LANES)
        ps_store(p, x);
    else
        ps_store_first(p, x, lanes);
}
enum { PS_PAIRS = 0 };
PS_INLINE void ps_beside_pair(const ps_a *p, int lanes, ps_wide *pair)
{
    pair[0] = pair[1] = ps_beside(p, lanes < PS_LANES ? lanes : PS_LANES);
}
PS_INLINE void ps_interleave_pair(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
