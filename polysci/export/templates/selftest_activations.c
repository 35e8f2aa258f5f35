/* Functions of finished sums. */
static double exact_relu(double x) { return fmax(x, 0); }
static double exact_gelu(double x) { return x / 2 * erfc(-x * 0.70710678118654752); }
static double exact_gelu_tanh(double x)
{
    return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
static double exact_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double exact_tanh(double x) { return tanh(x); }
static double exact_silu(double x) { return x / (1 + exp(-x)); }
static double exact_hard_swish(double x) { return x * fmin(fmax(x / 6 + 0.5, 0), 1); }
static double exact_softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double exact_mish(double x) { return x * tanh(exact_softplus(x)); }
