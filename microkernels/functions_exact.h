/* Functions of one double: what generated loops need beside those of libm. */
#include <math.h>

/* NaN where either is one; a choice after the other, as vectors have them. */
PS_INLINE double ps_d_max(double x, double y)
{
    const double most = x > y ? x : y; /* y where either is a NaN */
    return x == x ? most : x;
}
PS_INLINE double ps_d_min(double x, double y)
{
    const double least = x < y ? x : y;
    return x == x ? least : x;
}
PS_INLINE double ps_d_relu(double x) { return x < 0 ? 0 : x; }
PS_INLINE double ps_d_leaky(double x, double alpha) { return x < 0 ? x * alpha : x; }
PS_INLINE double ps_d_sigmoid(double x) { return 1 / (1 + exp(-x)); }
PS_INLINE double ps_d_silu(double x) { return x / (1 + exp(-x)); }
PS_INLINE double ps_d_gelu(double x) { return x / 2 * (1 + erf(x * 0.70710678118654752)); }
PS_INLINE double ps_d_gelu_tanh(double x)
{
    return x / 2 * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}
PS_INLINE double ps_d_hard_sigmoid(double x, double alpha, double beta)
{
    return ps_d_max(0, ps_d_min(1, alpha * x + beta));
}
PS_INLINE double ps_d_hard_swish(double x) { return x * ps_d_hard_sigmoid(x, 1.0 / 6, 0.5); }

PS_INLINE double ps_d_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
PS_INLINE double ps_d_square(double x) { return x * x; }
PS_INLINE double ps_d_cube(double x) { return x * x * x; }
PS_INLINE double ps_d_reciprocal(double x) { return 1 / x; }
PS_INLINE double ps_d_elu(double x, double alpha) { return x < 0 ? alpha * expm1(x) : x; }
PS_INLINE double ps_d_celu(double x, double alpha) { return x < 0 ? alpha * expm1(x / alpha) : x; }
PS_INLINE double ps_d_softplus(double x) { return ps_d_relu(x) + log1p(exp(-fabs(x))); }
PS_INLINE double ps_d_softsign(double x) { return x / (1 + fabs(x)); }
PS_INLINE double ps_d_mish(double x)
{
    const double low = x < -800 ? -800 : x; /* where the result is 0 */
    return low * tanh(ps_d_softplus(low));
}
PS_INLINE double ps_d_swish(double x, double alpha) { return x / (1 + exp(-alpha * x)); }
/* The remainder that has the sign of y, as Python's. */
PS_INLINE double ps_d_mod(double x, double y)
{
    const double rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : copysign(rest, rest != 0 ? rest : y);
}

PS_INLINE int ps_d_isnan(double x) { return x != x; }
PS_INLINE int ps_d_isinf(double x) { return fabs(x) == (double)INFINITY; }
/* Whether x, which comes later, takes the place of y as the first or last of the largest or
 * smallest numbers; nothing is beyond a NaN. */
PS_INLINE int ps_d_above(double x, double y) { return (x > y) | ((x != x) & (y == y)); }
PS_INLINE int ps_d_below(double x, double y) { return (x < y) | ((x != x) & (y == y)); }
PS_INLINE int ps_d_not_below(double x, double y) { return (x >= y) | (x != x); }
PS_INLINE int ps_d_not_above(double x, double y) { return (x <= y) | (x != x); }

/* Rounded towards zero; what is beyond becomes the nearest, a NaN 0. */
PS_INLINE int32_t ps_d_to_whole(double x)
{
    const double number = x == x ? x : 0, raised = number < -0x1p31 ? -0x1p31 : number;
    return (int32_t)(raised > 2147483647.0 ? 2147483647.0 : raised);
}
PS_INLINE int64_t ps_d_to_long(double x)
{
    const double number = x == x ? x : 0, raised = number < -0x1p63 ? -0x1p63 : number;
    return raised >= 0x1p63 ? INT64_MAX : (int64_t)raised;
}
/* Negative numbers wrap. */
PS_INLINE uint64_t ps_d_to_unsigned(double x)
{
    const double half = x >= 0x1p63 ? 0x1p63 : 0;
    return x >= 0x1p64 ? UINT64_MAX : (uint64_t)ps_d_to_long(x - half) + (uint64_t)half;
}
PS_INLINE int32_t ps_f_to_whole(float x) { return ps_d_to_whole((double)x); }
PS_INLINE int64_t ps_f_to_long(float x) { return ps_d_to_long((double)x); }
PS_INLINE uint64_t ps_f_to_unsigned(float x) { return ps_d_to_unsigned((double)x); }
