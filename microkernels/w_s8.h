/* w holds signed numbers of 8 bits, one of k a lane, in blocks with a scale. */
enum { PS_W_BITS = 8, PS_W_STEPS = 1, PS_W_ZEROS = 0 };
typedef ps_int ps_w_word;
PS_INLINE ps_w_word ps_w_load(const uint8_t *p)
{
    return ps_load_s8((const void *)p, PS_LANES);
}
PS_INLINE ps_vec ps_w_real(ps_w_word word, int k) { return (void)k, ps_to_real(word); }
