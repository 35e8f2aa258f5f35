/* Functions of one float, without a branch or a call, for loops that the compiler vectorises: with
 * -fno-trapping-math every choice becomes a blend, whatever the lanes.
 *
 * Errors are in ulp of the exact result, the largest of 70 million floats of all exponents.  A NaN
 * stays one, infinities get the limit, and results below the smallest normal float (1.2e-38) may
 * become 0: a denormal takes some CPUs a hundred cycles, and a masked softmax is full of them.
 *
 * Coefficients are minimax fits of the relative error, rounded to float. */
#include <stdint.h>

PS_INLINE uint32_t ps_f_bits(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
PS_INLINE float ps_f_from(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* Whether a fused multiply-add and a rounding are one instruction each: on aarch64, and on x86 with
 * vectors longer than those of SSE2. */
#ifdef __FP_FAST_FMAF
enum { PS_FUSES = 1 };
#else
enum { PS_FUSES = PS_LANES > 4 };
#endif
PS_INLINE float ps_f_fused(float x, float y, float z)
{
    return PS_FUSES ? __builtin_fmaf(x, y, z) : x * y + z;
}

PS_INLINE float ps_f_abs(float x) { return __builtin_fabsf(x); }
PS_INLINE float ps_f_sqrt(float x) { return __builtin_sqrtf(x); }

/* NaN where either is one, as maximum and minimum of NumPy.  A number that the compiler knows is none:
 * one comparison is left, and GCC's loops of quantisation take two fifths of the time. */
PS_INLINE float ps_f_max(float x, float y)
{
    const float most = x > y ? x : y; /* y where either is a NaN */
    if (__builtin_constant_p(y) && y == y)
        return !(x <= y) ? x : y;
    return x == x ? most : x;
}
PS_INLINE float ps_f_min(float x, float y)
{
    const float least = x < y ? x : y;
    if (__builtin_constant_p(y) && y == y)
        return !(x >= y) ? x : y;
    return x == x ? least : x;
}

/* The number of float16 that is nearest, ties to even; beyond 65504 an infinite one. */
PS_INLINE float ps_f_half(float x)
{
    const uint32_t bits = ps_bits_of(x), size = bits & 0x7fffffffu, sign = bits ^ size;
    const uint32_t rounded = (size + 0xfffu + (size >> 13 & 1u)) & ~0x1fffu;
    const float tiny = ps_float_of(size) + 0.5f - 0.5f; /* the sum's last bit is 2^-24 */
    const uint32_t large = size < 0x477ff000u ? rounded : 0x7f800000u; /* 65520 */
    const uint32_t finite = size < 0x38800000u ? ps_bits_of(tiny) : large;
    return ps_float_of(sign | (size > 0x7f800000u ? size : finite));
}

/* The number of bfloat16 that is nearest, ties to even; a NaN stays one. */
PS_INLINE float ps_f_brain(float x)
{
    const uint32_t bits = ps_bits_of(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return ps_float_of((x == x ? rounded : bits | 0x400000u) & 0xffff0000u);
}

/* min(hi, max(lo, x)), of which a NaN is left alone. */
PS_INLINE float ps_f_clip(float x, float lo, float hi)
{
    const float raised = x < lo ? lo : x;
    return raised > hi ? hi : raised;
}
PS_INLINE float ps_f_relu(float x) { return x < 0.0f ? 0.0f : x; }
PS_INLINE float ps_f_leaky(float x, float alpha) { return x < 0.0f ? alpha * x : x; }
PS_INLINE float ps_f_hard_sigmoid(float x, float alpha, float beta)
{
    return ps_f_clip(ps_f_fused(alpha, x, beta), 0.0f, 1.0f);
}
/* x (x + 3) / 6 from -3 on, with x + 3 at most 6; 2.5 ulp.  Two choices, not the three of x and a
 * hard sigmoid: each is a comparison and a blend, as costly as a product. */
PS_INLINE float ps_f_hard_swish(float x)
{
    const float most = x > 3.0f ? 3.0f : x, y = x * ((most + 3.0f) * (1.0f / 6.0f));
    return x < -3.0f ? 0.0f : y;
}

/* To a whole number, ties to even; exact.  2^23 leaves no bit for a fraction, and numbers from
 * there on have none. */
PS_INLINE float ps_f_rint(float x)
{
    const float size = __builtin_fabsf(x), whole = (size + 0x1p23f) - 0x1p23f;
    if (PS_FUSES)
        return __builtin_rintf(x);
    return size < 0x1p23f ? __builtin_copysignf(whole, x) : x;
}

/* To 8 bits: the nearest, ties to even, then saturated; a NaN becomes 0.  The sum's last bits are
 * the whole number. */
PS_INLINE uint8_t ps_f_to_u8(float x)
{
    const float raised = x > 0.0f ? x : 0.0f, clamped = raised < 255.0f ? raised : 255.0f;
    return (uint8_t)ps_f_bits(clamped + 0x1p23f);
}
PS_INLINE int8_t ps_f_to_s8(float x)
{
    const float number = x == x ? x : 0.0f;
    return (int8_t)ps_f_bits(ps_f_clip(number, -128.0f, 127.0f) + 0x1.8p23f);
}

/* ln 2 in two parts; the first has 15 bits, so its product with an exponent is exact. */
#define PS_LN2_HIGH 0x1.62e4p-1f
#define PS_LN2_LOW 1.42860677e-6f

/* x = n ln 2 + r, e^x = 2^n e^r; 1.0 ulp.  The product is made on the exponent's bits: between the
 * bounds n is -126..128, and e^r is below 1 where n is 128, above where it is -126.  Any number for x
 * above ln 2^128. */
#define PS_HIGHEST 0x1.62e42ep6f /* ln 2^128 */
PS_INLINE float ps_f_exp_below(float x)
{
    const float lowest = -0x1.5d589ep6f; /* ln 2^-126 */
    const float t = ps_f_fused(x, 1.44269504f, 0x1.8p23f), n = t - 0x1.8p23f;
    const float r = ps_f_fused(n, -PS_LN2_LOW, ps_f_fused(n, -PS_LN2_HIGH, x));
    float p = 0.00138143206f;
    p = ps_f_fused(p, r, 0.00836885069f);
    p = ps_f_fused(p, r, 0.0416684002f);
    p = ps_f_fused(p, r, 0.166665196f);
    p = ps_f_fused(p, r, 0.49999994f);
    p = ps_f_fused(p, r * r, r) + 1.0f;
    const float y = ps_f_from(ps_f_bits(p) + (ps_f_bits(t) << 23));
    return x < lowest ? 0.0f : y;
}
PS_INLINE float ps_f_exp(float x)
{
    const float y = ps_f_exp_below(x);
    return x <= PS_HIGHEST ? y : x + __builtin_inff();
}

/* e and m of |x| = m 2^e, m from sqrt(1/2) to sqrt(2); for 0, infinity and NaN e is -infinity, x
 * and x, and m is something finite. */
PS_INLINE float ps_f_split(float x, float m[1])
{
    const float size = __builtin_fabsf(x), lifted = size < 0x1p-126f ? size * 0x1p23f : size;
    const float shift = size < 0x1p-126f ? -23.0f : 0.0f;
    const uint32_t half = 0x3f3504f3u /* of sqrt(1/2) */, bits = ps_f_bits(lifted) - half;
    const float e = (float)((int32_t)bits >> 23) + shift;
    *m = ps_f_from((bits & 0x7fffffu) + half);
    const float low = size > 0.0f ? e : -__builtin_inff();
    return size < __builtin_inff() ? low : size;
}

/* e log 2 + log(1 + f), f from sqrt(1/2) - 1 to sqrt(2) - 1. */
PS_INLINE float ps_f_log_of(float e, float f)
{
    const float square = f * f;
    float p = -0.0763449669f;
    p = ps_f_fused(p, f, 0.127615765f);
    p = ps_f_fused(p, f, -0.131601825f);
    p = ps_f_fused(p, f, 0.142017573f);
    p = ps_f_fused(p, f, -0.166233569f);
    p = ps_f_fused(p, f, 0.200012267f);
    p = ps_f_fused(p, f, -0.250008196f);
    p = ps_f_fused(p, f, 0.333333313f);
    const float low = ps_f_fused(e, PS_LN2_LOW, p * (f * square));
    return ps_f_fused(e, PS_LN2_HIGH, f + ps_f_fused(-0.5f, square, low));
}
/* 0.9 ulp, denormals included; -infinity for 0, NaN for what is less. */
PS_INLINE float ps_f_log(float x)
{
    float m;
    const float e = ps_f_split(x, &m), y = ps_f_log_of(e, m - 1.0f);
    return x < 0.0f ? __builtin_nanf("") : y;
}

/* x^y as the C standard has it, x of any sign: 2^(y log2 x), the logarithm by atanh, in double;
 * 1.9 ulp. */
PS_INLINE float ps_f_pow(float x, float y)
{
    float m;
    const float e = ps_f_split(x, &m);
    const double s = ((double)m - 1.0) / ((double)m + 1.0), z = s * s;
    double l = 0.43173587352878445;
    l = l * z + 0.57671438420688614;
    l = l * z + 0.96179884763916890;
    l = l * z + 2.8853900797889311;
    const double w = (double)y * (l * s + (double)e), n = (w + 0x1.8p52) - 0x1.8p52;
    const float r = (float)(w - n), above = (float)(w - 128.0), below = (float)(w + 126.0);
    float p = 0.000153531539f;
    p = ps_f_fused(p, r, 0.00133991323f);
    p = ps_f_fused(p, r, 0.00961843971f);
    p = ps_f_fused(p, r, 0.0555033199f);
    p = ps_f_fused(p, r, 0.240226477f);
    p = ps_f_fused(p, r, 0.693147182f);
    p = ps_f_fused(p, r, 1.0f);
    const float power = ps_f_from(ps_f_bits(p) + (ps_f_bits((float)n + 0x1.8p23f) << 23));
    const float normal = below < 0.0f ? 0.0f : power;
    const float most = above < 0.0f ? normal : above + __builtin_inff();
    const int one = (y == 0.0f) | (ps_f_abs(x) == 1.0f);
    const int whole = ps_f_rint(y) == y, odd = whole & (ps_f_rint(0.5f * y) != 0.5f * y);
    const int none = (x < 0.0f) & (x > -__builtin_inff()) & !whole;
    const float of_size = one ? 1.0f : most, sign = odd ? x : 1.0f;
    const float result = ps_f_from(ps_f_bits(of_size) ^ (ps_f_bits(sign) & 0x80000000u));
    return none ? __builtin_nanf("") : result;
}

/* 2.5 ulp, and 0 where e^-x is infinite, below -88.7. */
PS_INLINE float ps_f_sigmoid(float x) { return 1.0f / (1.0f + ps_f_exp(-x)); }

/* x / (1 + e^-z); 0, as for z = -infinity, where no float holds e^-z. */
PS_INLINE float ps_f_gated(float x, float z)
{
    const float y = x / (1.0f + ps_f_exp_below(-z));
    return z < -PS_HIGHEST ? 0.0f : y;
}
PS_INLINE float ps_f_silu(float x) { return ps_f_gated(x, x); }

/* x / 2 (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 + e^(-2 u)). */
PS_INLINE float ps_f_gelu_tanh(float x)
{
    return ps_f_gated(x, x * ps_f_fused(x * x, 0.0713548163f, 1.59576912f));
}

/* A polynomial around 0, then 1 - 2 / (e^(2 |x|) + 1); 1.4 ulp. */
PS_INLINE float ps_f_tanh(float x)
{
    const float size = __builtin_fabsf(x), z = x * x;
    float p = -0.00627423963f;
    p = ps_f_fused(p, z, 0.0210716780f);
    p = ps_f_fused(p, z, -0.0538523085f);
    p = ps_f_fused(p, z, 0.133325860f);
    p = ps_f_fused(p, z, -0.333333164f);
    const float near = ps_f_fused(p, x * z, x);
    const float far = 1.0f - 2.0f / (ps_f_exp(size + size) + 1.0f);
    return size > 0.55f ? __builtin_copysignf(far, x) : near;
}

/* erfc(x) = e^(-x^2) p(x) / q(x), 0 <= x <= 9.4. */
PS_INLINE float ps_f_erfc(float x)
{
    float p = 0.0321570858f, q = 0.0569961406f;
    p = ps_f_fused(p, x, 0.226163372f);
    q = ps_f_fused(q, x, 0.400893688f);
    p = ps_f_fused(p, x, 0.725182235f);
    q = ps_f_fused(q, x, 1.31338239f);
    p = ps_f_fused(p, x, 1.23226404f);
    q = ps_f_fused(q, x, 2.38887525f);
    p = ps_f_fused(p, x, 1.0f);
    q = ps_f_fused(q, x, 2.36064363f);
    q = ps_f_fused(q, x, 1.0f);
    return ps_f_exp(-x * x) * p / q;
}

/* A polynomial around 0, then 1 - erfc(|x|), which is 1 from 4 on; 1.8 ulp. */
PS_INLINE float ps_f_erf(float x)
{
    const float size = __builtin_fabsf(x), z = x * x;
    float p = -0.000609036011f;
    p = ps_f_fused(p, z, 0.00501196273f);
    p = ps_f_fused(p, z, -0.0267789084f);
    p = ps_f_fused(p, z, 0.112821408f);
    p = ps_f_fused(p, z, -0.376125246f);
    p = ps_f_fused(p, z, 0.128379107f);
    const float near = ps_f_fused(p, x, x);
    const float far = 1.0f - ps_f_erfc(size > 4.0f ? 4.0f : size);
    return size > 0.9f ? __builtin_copysignf(far, x) : near;
}

/* x / 2 (1 + erf(x / sqrt(2))) as max(x, 0) - |x| / 2 erfc(|x| / sqrt(2)): nothing cancels where x
 * is low, and from 13.29 on erfc is 0.  1.2e-7 of max(|x|, 1), as of silu and the other gelu. */
PS_INLINE float ps_f_gelu(float x)
{
    const float size = __builtin_fabsf(x), end = size > 13.29f ? 13.29f : size;
    return ps_f_relu(x) - 0.5f * end * ps_f_erfc(0.707106781f * end);
}
