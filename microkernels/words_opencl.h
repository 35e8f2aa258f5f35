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
PS_INLINE uint32_t ps_row_word(const PS_LOCAL ps_rows *p) { return *(const PS_LOCAL uint *)p; }
PS_INLINE ps_int ps_column_words(const PS_LOCAL ps_columns *p)
{
    return *(const PS_LOCAL ps_int *)p;
}
