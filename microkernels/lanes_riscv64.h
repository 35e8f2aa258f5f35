/* Vectors of RISC-V: the largest, and the sum, of 32-bit whole numbers of all lanes. */
PS_INLINE int32_t ps_int_most(ps_int x) { return __builtin_reduce_max(x); }
PS_INLINE int32_t ps_int_total(ps_int x) { return __builtin_reduce_add(x); }
