/* Sums are f32; so is the bias. */
typedef ps_vec ps_acc;
typedef float ps_bias;
PS_INLINE ps_acc ps_acc_zero(void) { return ps_zero(); }
PS_INLINE ps_acc ps_acc_add(ps_acc x, ps_acc y) { return ps_add(x, y); }
/* From the bits of a vector of y, and to them. */
PS_INLINE ps_acc ps_acc_of(ps_vec x) { return x; }
PS_INLINE ps_vec ps_acc_bits(ps_acc x) { return x; }
