/* What generated loops need of doubles and of whole numbers. */
#include <math.h>

PS_INLINE double ps_d_max(double x, double y) { return x > y || x != x ? x : y; }
PS_INLINE double ps_d_min(double x, double y) { return x < y || x != x ? x : y; }
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

PS_INLINE int32_t ps_w_max(int32_t x, int32_t y) { return x > y ? x : y; }
PS_INLINE int32_t ps_w_min(int32_t x, int32_t y) { return x < y ? x : y; }
PS_INLINE int64_t ps_l_max(int64_t x, int64_t y) { return x > y ? x : y; }
PS_INLINE int64_t ps_l_min(int64_t x, int64_t y) { return x < y ? x : y; }
/* Whole numbers wrap. */
PS_INLINE int32_t ps_w_add(int32_t x, int32_t y) { return (int32_t)((uint32_t)x + (uint32_t)y); }
PS_INLINE int32_t ps_w_sub(int32_t x, int32_t y) { return (int32_t)((uint32_t)x - (uint32_t)y); }
PS_INLINE int32_t ps_w_mul(int32_t x, int32_t y) { return (int32_t)((uint32_t)x * (uint32_t)y); }
PS_INLINE int64_t ps_l_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
PS_INLINE int64_t ps_l_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
PS_INLINE int64_t ps_l_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }
/* Of whole numbers, which have no infinity: 0 for what has no quotient. */
PS_INLINE int32_t ps_w_div(int32_t x, int32_t y)
{
    return y == 0 ? 0 : y == -1 ? (int32_t)-(uint32_t)x : x / y;
}
PS_INLINE int64_t ps_l_div(int64_t x, int64_t y)
{
    return y == 0 ? 0 : y == -1 ? (int64_t)-(uint64_t)x : x / y;
}
/* A subscript out of data, of an axis of `extent` elements: a negative one counts from the end, and
 * what lies outside becomes the nearest one inside. */
PS_INLINE int64_t ps_place(int64_t at, int64_t extent)
{
    const int64_t place = at < 0 ? at + extent : at, last = extent - 1;
    return place < 0 ? 0 : place < last ? place : last;
}
