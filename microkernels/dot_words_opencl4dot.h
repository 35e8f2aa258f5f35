/* OpenCL C: products of words of four 8-bit numbers, by cl_khr_integer_dot_product. */
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable

/* sum + the four products of each lane, modulo 2^32: the built-in function that adds would saturate. */
PS_INLINE ps_int ps_dot_words(uint32_t a, ps_int b, ps_int sum)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        sum[i] += PS_X_SIGNED ? dot_4x8packed_ss_int(a, as_uint(b[i]))
                              : dot_4x8packed_us_int(a, as_uint(b[i]));
    return sum;
}
