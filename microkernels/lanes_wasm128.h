/* SIMD of WebAssembly: the largest, and the sum, of 32-bit whole numbers of all lanes. */
PS_INLINE int32_t ps_int_most(ps_int x)
{
    const ps_int y = ps_int_max(x, ps_as_int(ps_swap(ps_as_real(x), 2)));
    return ps_int_max(y, ps_as_int(ps_swap(ps_as_real(y), 1)))[0];
}
PS_INLINE int32_t ps_int_total(ps_int x)
{
    const ps_int y = x + ps_as_int(ps_swap(ps_as_real(x), 2));
    return (y + ps_as_int(ps_swap(ps_as_real(y), 1)))[0];
}
