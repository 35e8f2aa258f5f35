/* Sums are whole numbers of 32 bits; so is the bias. */
typedef ps_int ps_acc;
typedef int32_t ps_bias;
PS_INLINE ps_acc ps_acc_zero(void) { return ps_int_splat(0); }
PS_INLINE ps_acc ps_acc_add(ps_acc x, ps_acc y) { return ps_int_add(x, y); }
/* From the bits of a vector of y, and to them. */
PS_INLINE ps_acc ps_acc_of(ps_vec x) { return ps_as_int(x); }
PS_INLINE ps_vec ps_acc_bits(ps_acc x) { return ps_as_real(x); }
