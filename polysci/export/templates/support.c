/* The types of elements, and their bytes. */
typedef enum { BF16, F16, F32, F64, S8, S16, S32, S64, U8, U16, U32, U64 } type;
static const int64_t BYTES[] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8};

static int is_whole(type t) { return t >= S8; }
static int is_narrow(type t) { return t == S8 || t == U8; }

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
    return (double)x;
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
    float f32 = 0;
    double f64 = 0;
    int16_t s16 = 0;
    int32_t s32 = 0;
    int64_t s64 = 0;
    uint16_t u16 = 0;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    switch (t) {
    case BF16: memcpy(&u16, from, sizeof u16); return bf16_value(u16);
    case F16: memcpy(&u16, from, sizeof u16); return f16_value(u16);
    case F32: memcpy(&f32, from, sizeof f32); return (double)f32;
    case F64: memcpy(&f64, from, sizeof f64); return f64;
    case S8: return *from < 128 ? *from : *from - 256;
    case S16: memcpy(&s16, from, sizeof s16); return s16;
    case S32: memcpy(&s32, from, sizeof s32); return s32;
    case S64: memcpy(&s64, from, sizeof s64); return (double)s64;
    case U8: return *from;
    case U16: memcpy(&u16, from, sizeof u16); return u16;
    case U32: memcpy(&u32, from, sizeof u32); return u32;
    case U64: memcpy(&u64, from, sizeof u64); return (double)u64;
    }
    return 0;
}

/* Store element i of a layer's array, rounded to the nearest; whole numbers saturate. */
static void put(type t, void *array, int64_t i, double x)
{
    unsigned char *to = (unsigned char *)array + i * BYTES[t];
    const float real = (float)x;
    const uint16_t bits = t == F16 ? f16_bits(x) : bf16_bits(real);
    const double lowest = t == S8 ? -128 : t == U8 ? 0 : INT32_MIN;
    const double highest = t == S8 ? 127 : t == U8 ? 255 : INT32_MAX;
    const int32_t number = is_whole(t) ? (int32_t)fmin(fmax(rint(x), lowest), highest) : 0;
    switch (t) {
    case BF16:
    case F16: memcpy(to, &bits, sizeof bits); return;
    case S8:
    case U8: *to = (unsigned char)(number & 255); return;
    case S32: memcpy(to, &number, sizeof number); return;
    default: memcpy(to, &real, sizeof real); return;
    }
}

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

@?DEVICE@
static @NAME@_device *device;
@/DEVICE@
@?INPUTS@
/* A tensor that goes in or comes out. */
typedef struct {
    const char *name;
    type type;
    int64_t count;
} port;

enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@ };
@/INPUTS@
@?SEVERAL@
enum { ENTRIES = @ENTRY_COUNT@ };

/* Of every entry, one more than there are; `entry` is the one at hand. */
static int entry;
static const port input_ports[ENTRIES][INPUTS + 1] = {
@INPUT_ROWS@};
static const port output_ports[ENTRIES][OUTPUTS + 1] = {
@OUTPUT_ROWS@};
#define inputs input_ports[entry]
#define outputs output_ports[entry]
@/SEVERAL@
@?SINGLE@
/* One more than there are. */
static const port inputs[INPUTS + 1] = {
@INPUT_ROWS@    {0, F32, 0},
};
static const port outputs[OUTPUTS + 1] = {
@OUTPUT_ROWS@    {0, F32, 0},
};
@/SINGLE@
@?INPUTS@

static size_t size_of(const port *p) { return (size_t)(p->count * BYTES[p->type]); }

static void run_network(@NAME@_context *context, void **x, void **y)
{
    (void)x, (void)y;
@CALLS@}

static void *room(size_t bytes)
{
    void *found = calloc(bytes + 1, 1);
    if (!found) {
        puts("out of memory");
        exit(1);
    }
    return found;
}

/* A whole file, or nothing. */
static char *contents(const char *folder, const char *name, size_t *size)
{
    char *path = room(strlen(folder) + strlen(name) + 1), *data = 0;
    sprintf(path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file && !fseek(file, 0, SEEK_END)) {
        const long end = ftell(file);
        rewind(file);
        *size = end < 0 ? 0 : (size_t)end;
        data = room(*size);
        if (fread(data, 1, *size, file) != *size) {
            free(data);
            data = 0;
        }
    }
    if (file)
        fclose(file);
    if (!data)
        printf("%s: cannot be read\n", path);
    free(path);
    return data;
}

static double now(void)
{
    struct timespec t;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &t);
#else
    timespec_get(&t, TIME_UTC);
#endif
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The largest difference over the largest expected number or 1; a NaN must meet a NaN. */
static double port_error(const port *p, const void *got, const void *expected)
{
    double worst = 0, top = 1;
    for (int64_t i = 0; i < p->count; ++i) {
        const double a = value(p->type, got, i), b = value(p->type, expected, i);
        if (isfinite(b) && fabs(b) > top)
            top = fabs(b);
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        if (!isfinite(a) || !isfinite(b))
            return INFINITY;
        if (fabs(a - b) > worst)
            worst = fabs(a - b);
    }
    return worst / top;
}

static int passed_checks;
static int failed_checks;

static void expect(int good, const char *what)
{
    good ? ++passed_checks : ++failed_checks;
    if (!good)
        printf("FAILED %s\n", what);
}

#ifdef COUNT_ALLOCATIONS /* and --wrap for each of these functions */
static atomic_long allocations;
static void count_allocation(void) { ++allocations; }
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_malloc(size_t size) { return count_allocation(), __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size)
{
    return count_allocation(), __real_calloc(count, size);
}
void *__wrap_realloc(void *memory, size_t size)
{
    return count_allocation(), __real_realloc(memory, size);
}
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size)
{
    return count_allocation(), __real_posix_memalign(memory, alignment, size);
}
#endif

enum { HEAD = 64 }; /* bytes before the arrays of a file */

static int refused(const void *weights, size_t size, const char *reason)
{
    const char *why = 0;
    @NAME@_model *model = @NAME@_load_memory(@?DEVICE@device, @/DEVICE@weights, size, &why);
    const int right = !model && why && strstr(why, reason);
    @NAME@_unload(model);
    return right;
}

static void damaged(char *weights, size_t size)
{
    const char *why = 0;
    expect(!@NAME@_load(@?DEVICE@device, @/DEVICE@"/nonexistent/@NAME@.weights", &why) && why, "a missing file was loaded");
    expect(refused(weights, size - 1, size > HEAD ? "short" : "not the weights"),
           "weights without their last byte were loaded");
    expect(refused(weights, HEAD / 2, "not the weights"), "half a head was loaded");
    weights[HEAD / 2 - 1] ^= 1;
    expect(refused(weights, size, "not the weights"), "other weights were loaded");
    weights[HEAD / 2 - 1] ^= 1;
    if (size > HEAD) {
        weights[HEAD + (size - HEAD) / 2] ^= 4;
        expect(refused(weights, size, "damaged"), "damaged weights were loaded");
        weights[HEAD + (size - HEAD) / 2] ^= 4;
    }
}

static int filled(const port *p, void *array, const char *path)
{
    FILE *file = fopen(path, "rb");
    const int whole = file && fread(array, 1, size_of(p), file) == size_of(p);
    if (file)
        fclose(file);
    if (!whole)
        printf("%s: expected a file of %zu bytes for %s\n", path, size_of(p), p->name);
    return whole;
}
@/INPUTS@
@?CALLBACK@

#ifndef ON_BOARD /* which has one thread */
/* A pool: a thread for each part but the first. One that keeps its threads is faster. */
typedef struct {
    @NAME@_part *part;
    void *data;
    int index;
} one_part;

static void *run_part(void *given)
{
    const one_part *p = given;
    p->part(p->data, p->index);
    return 0;
}

static void run_parts(void *pool, int parts, @NAME@_part *part, void *data)
{
    _Alignas(64) one_part all[@COUNT@];
    _Alignas(64) pthread_t threads[@COUNT@];
    int started = 1;
    (void)pool;
    for (int i = 0; i < parts; ++i)
        all[i] = (one_part){part, data, i};
    while (started < parts && !pthread_create(&threads[started], 0, run_part, &all[started]))
        ++started;
    part(data, 0);
    for (int i = started; i < parts; ++i)
        part(data, i);
    while (--started > 0)
        pthread_join(threads[started], 0);
}
#endif

/* A pool that runs parts one after the other. */
static void run_in_turn(void *pool, int parts, @NAME@_part *part, void *data)
{
    (void)pool;
    while (parts-- > 0)
        part(data, parts);
}
@/CALLBACK@
