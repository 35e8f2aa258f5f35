/* OpenCL C: products of words of four 8-bit numbers, by arithmetic of 32 bits. */
/* sum + the four products of each lane. */
PS_INLINE ps_int ps_dot_words(uint32_t a, ps_int b, ps_int sum)
{
    const int4 x = PS_X_SIGNED ? convert_int4(as_char4(a)) : convert_int4(as_uchar4(a));
    return sum + x.s0 * (b << 24 >> 24) + x.s1 * (b << 16 >> 24) + x.s2 * (b << 8 >> 24) +
           x.s3 * (b >> 24);
}
