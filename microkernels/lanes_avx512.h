/* AVX-512: the largest, and the sum, of 32-bit whole numbers of all lanes. */
PS_INLINE int32_t ps_int_most(ps_int x) { return _mm512_reduce_max_epi32(x); }
PS_INLINE int32_t ps_int_total(ps_int x) { return _mm512_reduce_add_epi32(x); }
