/* What the element types hold, by arithmetic alone: value_T(x) of an element, nearest_T(v) the one
 * nearest to a value, ties to even.  In doubles, which hold every element exactly. */
#include <math.h>
#include <stdint.h>

#define GLUE_(x, y) x##_##y
#define GLUE(x, y) GLUE_(x, y)
#define UNUSED static __attribute__((unused))

typedef struct {
    int fraction, lowest, size; /* bits of the fraction, exponent of the denormals, all bits */
} format;

static const format of_bf16 = {7, -126, 16}, of_f16 = {10, -14, 16};

/* To the nearest whole number, ties to even; |x| < 2^51. */
UNUSED double even(double x) { return x + 0x1.8p52 - 0x1.8p52; }

UNUSED double decoded(format f, uint32_t bits)
{
    const uint32_t one = 1u << f.fraction, size = bits & ((1u << (f.size - 1)) - 1);
    const uint32_t fraction = size % one, exponent = size / one;
    const double sign = bits >> (f.size - 1) ? -1 : 1;
    if (size >= (1u << (f.size - 1)) - one)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * ldexp(exponent ? fraction + one : fraction,
                        f.lowest - f.fraction + (exponent ? (int)exponent - 1 : 0));
}

UNUSED uint32_t encoded(format f, double value)
{
    const uint32_t sign = signbit(value) ? 1u << (f.size - 1) : 0;
    const uint32_t one = 1u << f.fraction, infinite = (1u << (f.size - 1)) - one;
    if (isnan(value))
        return sign | infinite | one / 2;
    if (isinf(value))
        return sign | infinite;
    int exponent = f.lowest;
    if (value != 0)
        frexp(value, &exponent);
    const int above = exponent - 1 > f.lowest ? exponent - 1 - f.lowest : 0;
    const double ulps = even(ldexp(fabs(value), f.fraction - f.lowest - above));
    const double size = ldexp(above, f.fraction) + ulps;
    return sign | (size < infinite ? (uint32_t)size : infinite);
}

UNUSED double value_f32(float x) { return (double)x; }
UNUSED double value_bf16(uint16_t x) { return decoded(of_bf16, x); }
UNUSED double value_f16(uint16_t x) { return decoded(of_f16, x); }
UNUSED double value_whole(int64_t x) { return (double)x; }
#define value_u8 value_whole
#define value_s8 value_whole
#define value_s16 value_whole
#define value_s32 value_whole

UNUSED double between(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x; /* a NaN stays one */
}
UNUSED float nearest_f32(double x) { return (float)x; }
UNUSED uint16_t nearest_bf16(double x) { return (uint16_t)encoded(of_bf16, x); }
UNUSED uint16_t nearest_f16(double x) { return (uint16_t)encoded(of_f16, x); }
UNUSED uint8_t nearest_u8(double x) { return (uint8_t)even(between(x, 0, 255)); }
UNUSED int8_t nearest_s8(double x) { return (int8_t)even(between(x, -128, 127)); }
UNUSED int16_t nearest_s16(double x) { return (int16_t)x; }
UNUSED int32_t nearest_s32(double x) { return (int32_t)x; }
