/* A is x: two bf16 a lane. */
typedef ps_x ps_a;
PS_SCALAR ps_a ps_a_of(ps_x x) { return x; }
PS_INLINE ps_wide ps_word(const ps_a *p)
{
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return ps_int_splat(word);
}
PS_INLINE ps_wide ps_word_first(const ps_a *p, int n) { return (void)n, ps_int_splat(*p); }
/* Words of channels side by side, of grouped kernels. */
PS_INLINE ps_wide ps_beside(const ps_a *p, int lanes) { return ps_int_load((const void *)p, lanes); }
PS_INLINE ps_wide ps_filling(int32_t zero) { return (void)zero, ps_int_splat(0); }
/* From the lanes of ps_x_bits. */
PS_INLINE void ps_a_store(ps_a *p, ps_vec x, int lanes) { ps_x_store(p, x, lanes); }
enum { PS_PAIRS = 0 };
PS_INLINE void ps_beside_pair(const ps_a *p, int lanes, ps_wide *pair)
{
    pair[0] = pair[1] = ps_beside(p, lanes < PS_LANES ? lanes : PS_LANES);
}
PS_INLINE void ps_interleave_pair(ps_vec *even, ps_vec *odd) { ps_interleave(even, odd); }
