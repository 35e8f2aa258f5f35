/* Probes of a device: products of words of four 8-bit numbers by a work-item. */

/* Multiplications, twelve of which wait for none of the others.  The word changes from turn to turn,
 * as a random number does (Numerical Recipes): no sum of all turns is known ahead. */
PS_INLINE void ps_probe_word_products(float *y, int64_t at, int64_t turns)
{
    enum { CHAINS = 12 };
    _Alignas(64) ps_acc acc[CHAINS];
    uint32_t word = (uint32_t)at;
    const ps_int b = ps_int_splat((int32_t)word * 0x01030507);
    PS_UNROLL
    for (int i = 0; i < CHAINS; ++i)
        acc[i] = ps_int_splat(i);
    for (int64_t n = 0; n < turns; ++n) {
        word = word * 1664525u + 1013904223u;
        PS_UNROLL
        for (int i = 0; i < CHAINS; ++i)
            acc[i] = ps_dot_words(word + (uint32_t)i, b, acc[i]);
    }
    PS_UNROLL
    for (int i = 1; i < CHAINS; ++i)
        acc[0] = ps_acc_add(acc[0], acc[i]);
    ps_store(y + PS_LANES * at, ps_acc_bits(acc[0]));
}
