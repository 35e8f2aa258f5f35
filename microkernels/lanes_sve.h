/* SVE: the largest, and the sum, of 32-bit whole numbers of all lanes. */
PS_INLINE int32_t ps_int_most(ps_int x) { return svmaxv_s32(PS_ALL, x); }
PS_INLINE int32_t ps_int_total(ps_int x) { return (int32_t)svaddv_s32(PS_ALL, x); }
