/* w holds signed numbers of 4 bits, 8 of k in a lane, in blocks with a scale. */
enum { PS_W_BITS = 4, PS_W_STEPS = 8, PS_W_ZEROS = 0 };
typedef ps_int ps_w_word;
PS_INLINE ps_w_word ps_w_load(const uint8_t *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_vec ps_w_real(ps_w_word word, int k) { return ps_nibble_s4(word, k); }
