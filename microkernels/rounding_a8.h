/* Each number of A becomes a byte; a block has steps of max |A| / 127. */
enum { PS_X_BYTES = 1 };
/* Round a block of a row; return its step, and the sum of its bytes. */
PS_INLINE float ps_round_block(int8_t *restrict to, const float *restrict from, int64_t numbers,
                               int32_t *restrict totals)
{
    ps_int most = ps_int_splat(0), sum = ps_int_splat(0);
    for (int64_t k = 0; k < numbers; k += PS_LANES) /* not-a-numbers have the largest bits */
        most = ps_int_max(most, ps_as_int(ps_load(from + k)) & ps_int_splat(0x7fffffff));
    const int32_t bits = ps_int_most(most);
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof largest);
    const float inverse = largest > 0x1p-100f ? 127.0f / largest : 0.0f;
    for (int64_t k = 0; k < numbers; k += PS_LANES) {
        const ps_int x = ps_to_int(ps_load(from + k) * ps_splat(inverse));
        ps_store_s8(to + k, x, PS_LANES);
        sum = ps_int_add(sum, x);
    }
    *totals = ps_int_total(sum);
    return largest * (1.0f / 127.0f);
}
