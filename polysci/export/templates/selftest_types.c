/* The types of elements, their bytes and the limits of those that saturate. */
typedef enum { F32, BF16, F16, S8, U8, S32 } type;
static const int64_t BYTES[] = {4, 2, 2, 1, 1, 4};
static const double LOWEST[] = {0, 0, 0, -128, 0, INT32_MIN};
static const double HIGHEST[] = {0, 0, 0, 127, 255, INT32_MAX};

static int whole(type t) { return t >= S8; }
static int narrow(type t) { return t == S8 || t == U8; }

/* To the nearest bf16, ties to even: the upper half of an f32. */
static uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double bf16_value(uint16_t bits)
{
    const uint32_t all = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &all, sizeof x);
    return x;
}

/* To the nearest f16, ties to even: a multiple of 2^unit, 10 bits behind the leading one or fewer. */
static uint16_t f16_bits(double x)
{
    const unsigned sign = x < 0 ? 0x8000 : 0;
    const double size = fabs(x);
    int unit = -24;
    if (size >= 65520.0)
        return (uint16_t)(sign | 0x7c00);
    if (size > 0x1p-14)
        unit = ilogb(size) - 10;
    return (uint16_t)(sign | ((unsigned)(unit + 24) * 1024 + (unsigned)rint(ldexp(size, -unit))));
}

static double f16_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, rest = bits & 1023;
    const double size = exponent == 31 ? (rest ? NAN : INFINITY)
                        : exponent     ? ldexp(1024 + rest, exponent - 25)
                                       : ldexp(rest, -24);
    return bits & 0x8000 ? -size : size;
}

/* Element i of an array. */
static double value(type t, const void *array, int64_t i)
{
    const unsigned char *from = (const unsigned char *)array + i * BYTES[t];
    float real;
    uint16_t bits;
    int32_t number;
    switch (t) {
    case BF16: memcpy(&bits, from, sizeof bits); return bf16_value(bits);
    case F16: memcpy(&bits, from, sizeof bits); return f16_value(bits);
    case S8: return *from < 128 ? *from : *from - 256;
    case U8: return *from;
    case S32: memcpy(&number, from, sizeof number); return number;
    default: memcpy(&real, from, sizeof real); return real;
    }
}

/* Store element i, rounded to the nearest; whole numbers saturate. */
static void put(type t, void *array, int64_t i, double x)
{
    unsigned char *to = (unsigned char *)array + i * BYTES[t];
    const float real = (float)x;
    const uint16_t bits = t == F16 ? f16_bits(x) : bf16_bits(real);
    const double held = whole(t) ? fmin(fmax(rint(x), LOWEST[t]), HIGHEST[t]) : 0;
    const int32_t number = (int32_t)held;
    switch (t) {
    case BF16:
    case F16: memcpy(to, &bits, sizeof bits); return;
    case S8:
    case U8: *to = (unsigned char)(number & 255); return;
    case S32: memcpy(to, &number, sizeof number); return;
    default: memcpy(to, &real, sizeof real); return;
    }
}
