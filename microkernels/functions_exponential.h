/* More functions of one float by exponentials and logarithms, as those of functions.h. */

PS_INLINE float ps_f_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
PS_INLINE float ps_f_square(float x) { return x * x; }
PS_INLINE float ps_f_cube(float x) { return x * x * x; }
PS_INLINE float ps_f_reciprocal(float x) { return 1.0f / x; }
PS_INLINE int ps_f_isnan(float x) { return x != x; }
PS_INLINE int ps_f_isinf(float x) { return ps_f_abs(x) == __builtin_inff(); }

/* Whether x, which comes later, takes the place of y as the first or last of the largest or
 * smallest numbers; nothing is beyond a NaN. */
PS_INLINE int ps_f_above(float x, float y) { return (x > y) | ((x != x) & (y == y)); }
PS_INLINE int ps_f_below(float x, float y) { return (x < y) | ((x != x) & (y == y)); }
PS_INLINE int ps_f_not_below(float x, float y) { return (x >= y) | (x != x); }
PS_INLINE int ps_f_not_above(float x, float y) { return (x <= y) | (x != x); }

/* Exact. */
PS_INLINE float ps_f_floor(float x)
{
    const float whole = ps_f_rint(x);
    return whole > x ? whole - 1.0f : whole;
}
PS_INLINE float ps_f_ceil(float x)
{
    const float whole = ps_f_rint(x);
    return __builtin_copysignf(whole < x ? whole + 1.0f : whole, x);
}

/* e^x - 1: a polynomial around 0; 3 ulp. */
PS_INLINE float ps_f_expm1(float x)
{
    float p = 0.000199928967f;
    p = ps_f_fused(p, x, 0.0013997457f);
    p = ps_f_fused(p, x, 0.008333073f);
    p = ps_f_fused(p, x, 0.0416653156f);
    p = ps_f_fused(p, x, 0.166666687f);
    p = ps_f_fused(p, x, 0.5f);
    const float near = ps_f_fused(p, x * x, x);
    return ps_f_abs(x) > 0.5f ? ps_f_exp(x) - 1.0f : near;
}
PS_INLINE float ps_f_elu(float x, float alpha) { return x < 0.0f ? alpha * ps_f_expm1(x) : x; }
PS_INLINE float ps_f_celu(float x, float alpha)
{
    return x < 0.0f ? alpha * ps_f_expm1(x / alpha) : x;
}

/* log(1 + x), x from 0 to 1: from sqrt(2) - 1 on log 2 + log(1 + (x - 1) / 2). */
PS_INLINE float ps_f_low_log1p(float x)
{
    const int high = x > 0.414213562f;
    return ps_f_log_of(high ? 1.0f : 0.0f, high ? 0.5f * (x - 1.0f) : x);
}
/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|); 3 ulp. */
PS_INLINE float ps_f_softplus(float x)
{
    return ps_f_relu(x) + ps_f_low_log1p(ps_f_exp(-ps_f_abs(x)));
}
PS_INLINE float ps_f_softsign(float x) { return x / (1.0f + ps_f_abs(x)); }
PS_INLINE float ps_f_swish(float x, float alpha) { return ps_f_gated(x, alpha * x); }

/* x tanh(log(1 + e^x)) as x n / (n + 2), n = e^x (e^x + 2); as silu. */
PS_INLINE float ps_f_mish(float x)
{
    const float e = ps_f_exp(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
    return (x < -128.0f ? -128.0f : x) * (n / (n + 2.0f));
}

/* A polynomial around 0, then e^x / 2 -+ e^-x / 2, e^x by its root, which is finite; 4 ulp. */
PS_INLINE float ps_f_sinh(float x)
{
    const float size = ps_f_abs(x), z = x * x, root = ps_f_exp(0.5f * size);
    const float half = 0.5f * root, far = half * root - 0.25f / (half * root);
    float p = 2.81743974e-06f;
    p = ps_f_fused(p, z, 0.000198360663f);
    p = ps_f_fused(p, z, 0.00833335053f);
    p = ps_f_fused(p, z, 0.166666672f);
    return size > 1.0f ? __builtin_copysignf(far, x) : ps_f_fused(p, x * z, x);
}
PS_INLINE float ps_f_cosh(float x)
{
    const float root = ps_f_exp(0.5f * ps_f_abs(x)), half = 0.5f * root;
    return half * root + 0.25f / (half * root);
}

/* log(x + sqrt(x^2 + by)) for x > 0; from 2^20 on that is log(2 x). */
PS_INLINE float ps_f_area(float x, float by)
{
    const int far = x > 0x1p20f;
    const float near = far ? 1.0f : x, sum = near + ps_f_sqrt(ps_f_fused(near, near, by));
    return ps_f_log(far ? x : sum) + (far ? 0.693147182f : 0.0f);
}
/* A polynomial around 0; 3.5 ulp. */
PS_INLINE float ps_f_asinh(float x)
{
    const float size = ps_f_abs(x), z = x * x;
    float p = 0.00917537231f;
    p = ps_f_fused(p, z, -0.0199856237f);
    p = ps_f_fused(p, z, 0.0300144963f);
    p = ps_f_fused(p, z, -0.0446134433f);
    p = ps_f_fused(p, z, 0.0749989003f);
    p = ps_f_fused(p, z, -0.166666657f);
    const float near = ps_f_fused(p, x * z, x);
    return size > 0.5f ? __builtin_copysignf(ps_f_area(size, 1.0f), x) : near;
}
/* sqrt(2 t) times a polynomial, t = x - 1; 3.5 ulp, NaN below 1. */
PS_INLINE float ps_f_acosh(float x)
{
    const float t = x - 1.0f;
    float p = 0.000143365192f;
    p = ps_f_fused(p, t, -0.000624550739f);
    p = ps_f_fused(p, t, 0.00187590602f);
    p = ps_f_fused(p, t, -0.00557668041f);
    p = ps_f_fused(p, t, 0.0187497251f);
    p = ps_f_fused(p, t, -0.0833333284f);
    const float root = ps_f_sqrt(2.0f * t), near = ps_f_fused(p, t * root, root);
    return x > 1.5f ? ps_f_area(x, -1.0f) : near;
}
/* A polynomial around 0, then log((1 + x) / (1 - x)) / 2; 2 ulp, NaN beyond 1. */
PS_INLINE float ps_f_atanh(float x)
{
    const float size = ps_f_abs(x), z = x * x;
    float p = 0.176457763f;
    p = ps_f_fused(p, z, 0.0240764674f);
    p = ps_f_fused(p, z, 0.102977507f);
    p = ps_f_fused(p, z, 0.109646767f);
    p = ps_f_fused(p, z, 0.142950639f);
    p = ps_f_fused(p, z, 0.199997187f);
    p = ps_f_fused(p, z, 0.333333373f);
    const float near = ps_f_fused(p, x * z, x);
    const float far = 0.5f * ps_f_log((1.0f + size) / (1.0f - size));
    return size > 0.5f ? __builtin_copysignf(far, x) : near;
}

/* The remainder that has the sign of y, as Python's. */
PS_INLINE float ps_f_mod(float x, float y)
{
    const float rest = __builtin_fmodf(x, y);
    const int across = (rest != 0.0f) & ((rest < 0.0f) != (y < 0.0f));
    return across ? rest + y : __builtin_copysignf(rest, rest != 0.0f ? rest : y);
}
