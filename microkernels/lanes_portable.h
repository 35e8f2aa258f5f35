/* Any CPU: the largest, and the sum, of 32-bit whole numbers of all lanes. */
PS_INLINE int32_t ps_int_most(ps_int x)
{
    int32_t most = x[0];
    for (int i = 1; i < PS_LANES; ++i)
        most = most < x[i] ? x[i] : most;
    return most;
}
PS_INLINE int32_t ps_int_total(ps_int x) { return x[0] + x[1] + x[2] + x[3]; }
