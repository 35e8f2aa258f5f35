/* A is x: four 8-bit numbers a lane. */
typedef ps_x ps_a;
PS_SCALAR ps_a ps_a_of(ps_x x) { return x; }
PS_INLINE ps_wide ps_flipped_lanes(ps_int x)
{
    return PS_FLIP ? ps_int_xor(x, ps_int_splat((int32_t)((PS_FLIP & 0xff) * 0x01010101u))) : x;
}
PS_INLINE ps_wide ps_flipped(uint32_t word) { return ps_flipped_lanes(ps_int_splat((int32_t)word)); }
PS_INLINE ps_wide ps_word(const ps_a *p)
{
    uint32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return ps_flipped(word);
}
PS_INLINE ps_wide ps_word_first(const ps_a *p, int n) /* n < 4; what is behind meets zeros */
{
    uint32_t word = (uint8_t)p[0];
    if (n > 1)
        word |= (uint32_t)(uint8_t)p[1] << 8;
    if (n > 2)
        word |= (uint32_t)(uint8_t)p[2] << 16;
    return ps_flipped(word);
}
/* Words of channels side by side, of grouped kernels. */
PS_INLINE ps_wide ps_beside(const ps_a *p, int lanes)
{
    return ps_flipped_lanes(ps_int_load((const void *)p, lanes));
}
/* The padding: x_zero in every place. */
PS_INLINE ps_wide ps_filling(int32_t zero) { return ps_flipped((uint8_t)zero * 0x01010101u); }
/* From the lanes of ps_x_bits. */
PS_INLINE void ps_a_store(ps_a *p, ps_vec x, int lanes) { ps_x_store(p, x, lanes); }
enum { PS_PAIRS = 0 };
PS_INLINE void ps_beside_pair(const ps_a *p, int lanes, ps_wide *pair)
{
    pair[0] = pair[1] = ps_beside(p, lanes < PS_LANES ? lanes : PS_LANES);
}
PS_INLINE void ps_interleave_pair(ps_vec *even, ps_vec *odd) { ps_interleave(even, odd); }
