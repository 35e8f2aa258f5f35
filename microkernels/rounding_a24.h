/* Each number of A becomes three bytes, which lie `numbers` apart: (first * 256 + second) * 256 + third
 * units. The unit of a block is a power of two, so that whole numbers stay exact. The largest number
 * has W = 127 * (2^16 + 2^8 + 1) units, or up to a half less: the error is max |A| / W or less. */
enum { PS_X_BYTES = 3 };
/* Round a block of a row; return the step of its first bytes, 65536 units, which is no denormal number
 * beside scales of weights, and the sums of its first, second and third bytes. */
PS_INLINE float ps_round_block(int8_t *restrict to, const float *restrict from, int64_t numbers,
                               int32_t *restrict totals)
{
    ps_int most = ps_int_splat(0);
    ps_int first = most, second = most, third = most;
    for (int64_t k = 0; k < numbers; k += PS_LANES) /* not-a-numbers have the largest bits */
        most = ps_int_max(most, ps_as_int(ps_load(from + k)) & ps_int_splat(0x7fffffff));
    const int32_t bits = ps_int_most(most);
    const int32_t exponent = (bits + 0x10101) >> 23; /* one more where bytes reach no further */
    const int32_t tiny = bits < 0x0d800000, nan = bits >= 0x7f800000; /* below 2^-100, and no number */
    const int32_t up = tiny ? 0 : (276 - exponent) << 23;
    const int32_t down = nan ? 0x7fc00000 : tiny ? 0 : (exponent - 6) << 23;
    float inverse, step;
    __builtin_memcpy(&inverse, &up, sizeof inverse);
    __builtin_memcpy(&step, &down, sizeof step);
    for (int64_t k = 0; k < numbers; k += PS_LANES) {
        /* Halves beside whole numbers: what is rounded lies between two of them, and never amid. */
        const ps_vec x = ps_to_real(ps_to_int(ps_load(from + k) * ps_splat(inverse)));
        const ps_int a = ps_to_int((x + ps_splat(128.5f)) * ps_splat(0x1p-16f));
        const ps_vec rest = x - ps_to_real(a) * ps_splat(65536.0f);
        const ps_int b = ps_to_int((rest + ps_splat(0.5f)) * ps_splat(0x1p-8f));
        const ps_int c = ps_to_int(rest - ps_to_real(b) * ps_splat(256.0f));
        ps_store_s8(to + k, a, PS_LANES);
        ps_store_s8(to + numbers + k, b, PS_LANES);
        ps_store_s8(to + 2 * numbers + k, c, PS_LANES);
        first = ps_int_add(first, a), second = ps_int_add(second, b), third = ps_int_add(third, c);
    }
    totals[0] = ps_int_total(first), totals[1] = ps_int_total(second), totals[2] = ps_int_total(third);
    return step;
}
