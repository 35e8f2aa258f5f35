/* Functions of finished sums in memory, of `vecs` vectors: loops that compilers vectorise. */
#if defined __GNUC__ && !defined __clang__ /* whatever the flags, choices become blends */
#define PS_EACH static PS_KERNEL __attribute__((unused, optimize("no-trapping-math"))) void
#else
#define PS_EACH static PS_KERNEL __attribute__((unused)) void
#endif
#define PS_OF(function)                                                                            \
    for (int64_t i = 0; i < vecs * PS_LANES; ++i)                                                  \
        x[i] = function(x[i])

PS_EACH ps_each_relu(float *x, int64_t vecs) { PS_OF(ps_f_relu); }
PS_EACH ps_each_gelu(float *x, int64_t vecs) { PS_OF(ps_f_gelu); }
PS_EACH ps_each_gelu_tanh(float *x, int64_t vecs) { PS_OF(ps_f_gelu_tanh); }
PS_EACH ps_each_sigmoid(float *x, int64_t vecs) { PS_OF(ps_f_sigmoid); }
PS_EACH ps_each_tanh(float *x, int64_t vecs) { PS_OF(ps_f_tanh); }
PS_EACH ps_each_silu(float *x, int64_t vecs) { PS_OF(ps_f_silu); }
PS_EACH ps_each_hard_swish(float *x, int64_t vecs) { PS_OF(ps_f_hard_swish); }
PS_EACH ps_each_softplus(float *x, int64_t vecs) { PS_OF(ps_f_softplus); }
PS_EACH ps_each_mish(float *x, int64_t vecs) { PS_OF(ps_f_mish); }
