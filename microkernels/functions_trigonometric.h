/* Trigonometric functions of one float, without a branch or a call, as those of functions.h. */

/* x p modulo 4, from -2 to 2, for a p of 27 bits: a product of 2^53 and more is a multiple of 4, and
 * below that 1.5 2^54 leaves no bit under 4. */
PS_INLINE double ps_f_modulo(double x, double p)
{
    const double t = x * p, rest = t - ((t + 0x1.8p54) - 0x1.8p54);
    return __builtin_fabs(t) < 0x1p53 ? rest : 0.0;
}

/* The remainder of x modulo pi / 2, from -pi / 4 to pi / 4, exact to a rounding for every float, and
 * the last bits of the quotient; NaN for what is not finite.  2 / pi in pieces of 27 bits, whose
 * products with x are exact; the sum's leading bits cancel before the last ones are added. */
PS_INLINE float ps_f_quarter(float x, uint32_t quotient[1])
{
    const double wide = (double)x;
    const double t0 = ps_f_modulo(wide, 0x1.45f306cp-1), t1 = ps_f_modulo(wide, 0x1.c9c8828p-29);
    const double t2 = ps_f_modulo(wide, 0x1.29fc27p-56), t3 = ps_f_modulo(wide, 0x1.5f47d4cp-82);
    const double t4 = ps_f_modulo(wide, 0x1.3770368p-110), t5 = wide * 0x1.629599p-136;
    const double sum = t0 + t1 + t2 + t3 + t4 + t5;
    const double n = (sum + 0x1.8p52) - 0x1.8p52;
    const double rest = ((((t0 - n) + t1) + t2) + t3) + t4 + t5 + wide * 0x1.e21c82p-163;
    const float finite = (float)(rest * 1.5707963267948966);
    *quotient = ps_f_bits((float)n + 0x1.8p23f);
    return ps_f_abs(x) < __builtin_inff() ? finite : x - x;
}

/* From -pi / 4 to pi / 4. */
PS_INLINE float ps_f_low_sin(float x)
{
    const float z = x * x;
    float p = 2.71831163e-06f;
    p = ps_f_fused(p, z, -0.000198393347f);
    p = ps_f_fused(p, z, 0.00833332911f);
    p = ps_f_fused(p, z, -0.166666672f);
    return ps_f_fused(p, x * z, x);
}
PS_INLINE float ps_f_low_cos(float x)
{
    const float z = x * x;
    float p = 2.44384501e-05f;
    p = ps_f_fused(p, z, -0.00138873677f);
    p = ps_f_fused(p, z, 0.0416666456f);
    return ps_f_fused(p, z * z, ps_f_fused(-0.5f, z, 1.0f));
}

/* The sine of x plus `turns` quarters of a circle. */
PS_INLINE float ps_f_wave(float x, uint32_t turns)
{
    uint32_t quotient;
    const float r = ps_f_quarter(x, &quotient), s = ps_f_low_sin(r), c = ps_f_low_cos(r);
    const uint32_t quarter = quotient + turns;
    const float y = quarter & 1 ? c : s;
    return quarter & 2 ? -y : y;
}

/* 1.6 ulp of every float. */
PS_INLINE float ps_f_sin(float x) { return ps_f_wave(x, 0); }
PS_INLINE float ps_f_cos(float x) { return ps_f_wave(x, 1); }
/* 3 ulp of every float. */
PS_INLINE float ps_f_tan(float x)
{
    uint32_t quotient;
    const float r = ps_f_quarter(x, &quotient), s = ps_f_low_sin(r), c = ps_f_low_cos(r);
    const float over = quotient & 1 ? -c : s, under = quotient & 1 ? s : c;
    return over / under;
}

#define PS_HALF_PI_LOW -4.37113883e-8f /* pi / 2 without the float 1.57079637 */

/* asin(s), s = sqrt(z), from 0 to 1/2. */
PS_INLINE float ps_f_low_asin(float s, float z)
{
    float p = 0.0375651829f;
    p = ps_f_fused(p, z, 0.0144026186f);
    p = ps_f_fused(p, z, 0.0318176076f);
    p = ps_f_fused(p, z, 0.0445157215f);
    p = ps_f_fused(p, z, 0.0750051066f);
    p = ps_f_fused(p, z, 0.166666597f);
    return ps_f_fused(p, s * z, s);
}

/* From 1/2 on asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2)); 2.5 ulp, NaN beyond 1. */
PS_INLINE float ps_f_asin(float x)
{
    const float size = ps_f_abs(x), z = size > 0.5f ? 0.5f * (1.0f - size) : size * size;
    const float s = size > 0.5f ? ps_f_sqrt(z) : size, low = ps_f_low_asin(s, z);
    const float high = 1.57079637f - (2.0f * low - PS_HALF_PI_LOW);
    return __builtin_copysignf(size > 0.5f ? high : low, x);
}
PS_INLINE float ps_f_acos(float x)
{
    const float size = ps_f_abs(x), z = size > 0.5f ? 0.5f * (1.0f - size) : size * size;
    const float s = size > 0.5f ? ps_f_sqrt(z) : size, low = ps_f_low_asin(s, z);
    const float near = 1.57079637f - (__builtin_copysignf(low, x) - PS_HALF_PI_LOW);
    const float far = x < 0.0f ? 3.14159274f - (2.0f * low - 2.0f * PS_HALF_PI_LOW) : 2.0f * low;
    return size > 0.5f ? far : near;
}

/* From tan(pi / 8) on atan(x) = pi / 4 + atan((x - 1) / (x + 1)), from tan(3 pi / 8) on
 * pi / 2 - atan(1 / x); 2 ulp. */
PS_INLINE float ps_f_atan(float x)
{
    const float size = ps_f_abs(x);
    const int far = size > 2.41421356f, middle = size > 0.414213562f;
    const float over = far ? -1.0f : middle ? size - 1.0f : size;
    const float under = far ? size : middle ? size + 1.0f : 1.0f;
    const float first = far ? 1.57079637f : middle ? 0.785398185f : 0.0f;
    const float rest = far ? PS_HALF_PI_LOW : middle ? 0.5f * PS_HALF_PI_LOW : 0.0f;
    const float t = over / under, z = t * t;
    float p = -0.0608344637f;
    p = ps_f_fused(p, z, 0.105959982f);
    p = ps_f_fused(p, z, -0.142438486f);
    p = ps_f_fused(p, z, 0.199984893f);
    p = ps_f_fused(p, z, -0.333333164f);
    return __builtin_copysignf(first + (ps_f_fused(p, t * z, t) + rest), x);
}
