/* On devices: functions of finished sums by their number, as no pointer names them. */
#undef PS_CALL
#define PS_CALL(activation, x, vecs) ps_each(activation, x, vecs)
enum {
    ps_each_relu = 1,
    ps_each_gelu,
    ps_each_gelu_tanh,
    ps_each_sigmoid,
    ps_each_tanh,
    ps_each_silu,
    ps_each_hard_swish,
    ps_each_softplus,
    ps_each_mish
};
#define PS_OF(function)                                                                            \
    for (int64_t i = 0; i < vecs * PS_LANES; ++i)                                                  \
        x[i] = function(x[i]);                                                                     \
    return

PS_SMALL void ps_each(int activation, float *x, int64_t vecs)
{
    switch (activation) {
    case ps_each_relu: PS_OF(ps_f_relu);
    case ps_each_gelu: PS_OF(ps_f_gelu);
    case ps_each_gelu_tanh: PS_OF(ps_f_gelu_tanh);
    case ps_each_sigmoid: PS_OF(ps_f_sigmoid);
    case ps_each_tanh: PS_OF(ps_f_tanh);
    case ps_each_silu: PS_OF(ps_f_silu);
    case ps_each_hard_swish: PS_OF(ps_f_hard_swish);
    case ps_each_softplus: PS_OF(ps_f_softplus);
    case ps_each_mish: PS_OF(ps_f_mish);
    }
}
