typedef enum { BF16, F16, F32, F64, S8, S16, S32, S64, U8, U16, U32, U64 } type;
static const size_t BYTES[] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8};

/* A tensor that goes in or comes out. */
typedef struct {
    const char *name;
    type type;
    size_t count;
} port;

/* A number of float16 out of its bits. */
static double half_value(uint16_t bits)
{
    double x = bits & 0x3ff, step = 1.0 / 16777216.0; /* 2^-24 */
    int exponent = bits >> 10 & 31;
    if (exponent == 31)
        return x != 0 ? (double)NAN : bits >> 15 ? -(double)INFINITY : (double)INFINITY;
    for (x += exponent ? 1024 : 0; exponent > 1; --exponent)
        step *= 2;
    return bits >> 15 ? -x * step : x * step;
}

/* The upper half of a float32. */
static double bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return (double)x;
}

static double value(type t, const void *array, size_t i)
{
    switch (t) {
    case BF16: return bf16_value(((const uint16_t *)array)[i]);
    case F16: return half_value(((const uint16_t *)array)[i]);
    case F32: return (double)((const float *)array)[i];
    case F64: return ((const double *)array)[i];
    case S8: return (double)((const int8_t *)array)[i];
    case S16: return (double)((const int16_t *)array)[i];
    case S32: return (double)((const int32_t *)array)[i];
    case S64: return (double)((const int64_t *)array)[i];
    case U8: return (double)((const uint8_t *)array)[i];
    case U16: return (double)((const uint16_t *)array)[i];
    case U32: return (double)((const uint32_t *)array)[i];
    case U64: return (double)((const uint64_t *)array)[i];
    }
    return 0;
}

@TABLES@
static size_t size_of(const port *p) { return p->count * BYTES[p->type]; }
