/* CUDA C++: words of four 8-bit numbers in the memory of a block, at multiples of their size. */
typedef ps_x ps_rows;    /* elements of A there */
typedef ps_b ps_columns; /* and of B */

/* A word of neighbours in x; `zero` in all places where they are not real. */
PS_INLINE void ps_copy_word(ps_rows *to, const ps_x *from, int real, int32_t zero)
{
    *(uint32_t *)to = real ? *(const uint32_t *)from : (uint8_t)zero * 0x01010101u;
}
/* Four words of `zero`. */
PS_SMALL uint4 ps_filled(int32_t zero)
{
    const uint32_t word = (uint8_t)zero * 0x01010101u;
    return uint4{word, word, word, word};
}
/* 16 bytes of x; `zero` in all places where they are not real. */
PS_INLINE void ps_copy_chunk_filled(ps_rows *to, const ps_x *from, int real, int32_t zero)
{
    *(uint4 *)to = real ? *(const uint4 *)from : ps_filled(zero);
}
/* Words of neighbouring columns, PS_LANES of them. */
PS_INLINE void ps_copy_words(ps_columns *to, const ps_b *from)
{
    *(ps_int *)to = *(const ps_int *)from;
}
/* Words of neighbouring columns of a panel, PS_LANES of them. */
PS_INLINE ps_int ps_panel_words(const ps_b *p) { return *(const ps_int *)p; }
/* A word of x, at a multiple of its size. */
PS_INLINE uint32_t ps_word_of(const ps_x *p) { return *(const uint32_t *)p; }
/* A word of four elements, `apart`, of which the first `used` exist. */
PS_INLINE uint32_t ps_gathered_word(const ps_x *p, int64_t apart, int used)
{
    uint32_t word = 0;
    PS_UNROLL
    for (int i = 0; i < PS_WORD; ++i)
        if (i < used)
            word |= (uint32_t)(uint8_t)p[i * apart] << 8 * i;
    return word;
}
PS_INLINE uint32_t ps_row_word(const ps_rows *p) { return *(const uint32_t *)p; }
PS_INLINE ps_int ps_column_words(const ps_columns *p) { return *(const ps_int *)p; }
#ifndef PS_EMULATED
/* sum + the four products (PTX ISA, dp4a). */
PS_INLINE int32_t ps_dot_word(uint32_t a, int32_t b, int32_t sum)
{
    if (PS_X_SIGNED)
        asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    else
        asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}
#endif
PS_INLINE ps_int ps_dot_words(uint32_t a, ps_int b, ps_int sum)
{
    PS_EACH_WHOLE(ps_dot_word(a, b.lane[i], sum.lane[i]));
}
