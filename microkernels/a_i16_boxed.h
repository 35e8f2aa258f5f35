/* A is x widened to 16 bits while it is packed. */
typedef int16_t ps_a;
enum { PS_FLIP = 0 };
PS_SCALAR ps_a ps_a_of(ps_x x) { return x; }
PS_INLINE ps_wide ps_word(const ps_a *p)
{
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return ps_int_splat(word);
}
PS_INLINE ps_wide ps_word_first(const ps_a *p, int n) { return (void)n, ps_int_splat(*p); }
PS_INLINE ps_wide ps_beside(const ps_a *p, int lanes)
{
    _Alignas(64) int32_t x[PS_LANES] = {0};
    for (int i = 0; i < lanes; ++i)
        x[i] = p[i];
    return ps_int_load(x, PS_LANES);
}
PS_INLINE ps_wide ps_filling(int32_t zero)
{
    return ps_int_splat((int32_t)((uint16_t)zero * 0x10001u));
}
/* From the lanes of ps_x_bits. */
PS_INLINE void ps_a_store(ps_a *p, ps_vec x, int lanes)
{
    _Alignas(64) int32_t wide[PS_LANES];
    ps_int_store(wide, ps_as_int(x), PS_LANES);
    for (int i = 0; i < lanes; ++i)
        p[i] = (ps_a)wide[i];
}
enum { PS_PAIRS = 0 };
PS_INLINE void ps_beside_pair(const ps_a *p, int lanes, ps_wide *pair)
{
    pair[0] = pair[1] = ps_beside(p, lanes < PS_LANES ? lanes : PS_LANES);
}
PS_INLINE void ps_interleave_pair(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
