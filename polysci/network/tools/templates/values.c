typedef enum { F32, F64, S8, S16, S32, S64, U8, U16, U32, U64 } type;
static const size_t BYTES[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8};

/* A tensor that goes in or comes out. */
typedef struct {
    const char *name;
    type type;
    size_t count;
} port;

static double value(type t, const void *array, size_t i)
{
    switch (t) {
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

enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@ };

/* One more than there are. */
static const port inputs[INPUTS + 1] = {
@INPUT_ROWS@    {0, F32, 0},
};
static const port outputs[OUTPUTS + 1] = {
@OUTPUT_ROWS@    {0, F32, 0},
};

static size_t size_of(const port *p) { return p->count * BYTES[p->type]; }
