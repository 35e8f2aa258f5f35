/* OpenCL C: words of four 8-bit numbers in the memory of a group, at multiples of their size. */
typedef ps_x ps_rows;    /* elements of A there */
typedef ps_b ps_columns; /* and of B */

/* A word of neighbours in x; `zero` in all places where they are not real. */
PS_INLINE void ps_copy_word(PS_LOCAL ps_rows *to, const __global ps_x *from, int real, int32_t zero)
{
    *(PS_LOCAL uint *)to = real ? *(const __global uint *)from : (uint8_t)zero * 0x01010101u;
}
/* Words of neighbouring columns, PS_LANES of them. */
PS_INLINE void ps_copy_words(PS_LOCAL ps_columns *to, const __global ps_b *from)
{
    *(PS_LOCAL ps_int *)to = *(const __global ps_int *)from;
}
/* Words of neighbouring columns of a panel, PS_LANES of them. */
PS_INLINE ps_int ps_panel_words(const __global ps_b *p) { return *(const __global ps_int *)p; }
/* A word of x, at a multiple of its size. */
PS_INLINE uint32_t ps_word_of(const __global ps_x *p) { return *(const __global uint *)p; }
PS_INLINE uint32_t ps_word_of(const PS_LOCAL ps_rows *p) { return *(const PS_LOCAL uint *)p; }
/* A word of four elements, `apart`, of which the first `used` exist. */
#define PS_GATHER_WORD                                                                             \
    uint32_t word = 0;                                                                             \
    PS_UNROLL                                                                                      \
    for (int i = 0; i < PS_WORD; ++i)                                                              \
        if (i < used)                                                                              \
            word |= (uint32_t)(uint8_t)p[i * apart] << 8 * i;                                      \
    return word
PS_INLINE uint32_t ps_gathered_word(const __global ps_x *p, int64_t apart, int used)
{
    PS_GATHER_WORD;
}
PS_INLINE uint32_t ps_gathered_word(const PS_LOCAL ps_rows *p, int64_t apart, int used)
{
    PS_GATHER_WORD;
}
PS_INLINE uint32_t ps_row_word(const PS_LOCAL ps_rows *p) { return *(const PS_LOCAL uint *)p; }
PS_INLINE ps_int ps_column_words(const PS_LOCAL ps_columns *p)
{
    return *(const PS_LOCAL ps_int *)p;
}
