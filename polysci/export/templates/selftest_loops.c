/* How many points loops first .. last - 1 have. */
static int64_t points(const layer *l, int first, int last)
{
    int64_t count = 1;
    for (int d = first; d < last; ++d)
        count *= l->loop[d].extent;
    return count;
}

/* Move to the next point of these loops; 0, and back to the first one, after the last one. */
static int next(const layer *l, int first, int last, int64_t *at)
{
    for (int d = last - 1; d >= first; --d) {
        if (++at[d] < l->loop[d].extent)
            return 1;
        at[d] = 0;
    }
    return 0;
}

/* The largest of floating-point inputs, or of weights by which 8-bit ones are multiplied, for which
 * f32 holds every sum, or s32 does. Beyond 256 and 2048 bf16 and f16 round sums. */
static int64_t largest(const layer *l)
{
    if (l->scale > 1)
        return 1;
    const int64_t depth = points(l, l->groups, l->terms);
    int64_t top = whole(l->x_type) ? 127 : l->y_type == F32 ? 4 : 60;
    if (whole(l->x_type))
        while (top > 1 && depth * 2 * 255 * top >= INT32_MAX - (1 << 17))
            --top;
    else
        while (top > 1 && depth * top * top + 2 * top >= 1 << 24)
            --top;
    return top;
}

/* Weights that Winograd's transforms divide without a remainder, and few enough of them. */
static void sparse(const layer *l, void *w)
{
    const int64_t channels = points(l, l->groups, l->terms) / 9;
    for (int64_t i = 0; i < l->w; ++i) {
        const int64_t filter = i / 9 / channels, channel = i / 9 % channels;
        const int64_t moved = (channel - l->most * filter % channels + channels) % channels;
        const double held = value(l->w_type, w, i) * l->scale;
        put(l->w_type, w, i, moved < l->most ? held : 0);
    }
}

/* Weights in the order of the loops, the columns last: for long inner loops. */
static block turned(const layer *l, const void *w)
{
    block b = allocate(points(l, l->rows, l->loops) * 8);
    double *to = reals(b);
    _Alignas(64) int64_t at[LOOPS] = {0};
    do {
        int64_t from = l->w_first;
        for (int d = l->rows; d < l->loops; ++d)
            from += at[d] * l->loop[d].w;
        *to++ = value(l->w_type, w, from);
    } while (next(l, l->rows, l->loops, at));
    return b;
}

/* Where a point of the first `loops` loops reads x or writes y, or -1 where that is outside. */
static int64_t element(const layer *l, int array, int loops, const int64_t *at)
{
    int64_t found = 0;
    for (int a = 0; a < l->axes[array]; ++a) {
        const axis *own = &l->axis[array][a];
        int64_t index = own->first;
        for (int d = 0; d < loops; ++d)
            index += at[d] * l->loop[d].of[array][a];
        if (index < 0 || index >= own->extent)
            return -1;
        found += index * own->stride;
    }
    return found;
}

/* The sums of products by plain loops; w as turned() leaves it. */
static block contract(const layer *l, operands o, const double *w)
{
    const int64_t width = points(l, l->terms, l->loops), depth = points(l, l->groups, l->terms);
    const int64_t step = l->terms < l->loops ? l->loop[l->terms].y : 0;
    block y = allocate(l->y * 8), row = allocate(width * 8);
    double *sums = reals(row);
    _Alignas(64) int64_t at[LOOPS] = {0};
    for (int64_t i = 0; i < l->y; ++i)
        reals(y)[i] = 0;
    do {
        const int64_t to = element(l, OF_Y, l->groups, at);
        int64_t group = 0;
        for (int d = l->rows; d < l->groups; ++d)
            group = group * l->loop[d].extent + at[d];
        if (to < 0)
            continue;
        for (int64_t k = 0; k < width; ++k)
            sums[k] = 0;
        const double *weights = w + group * depth * width;
        do {
            const int64_t from = element(l, OF_X, l->terms, at);
            const double x = from < 0 ? 0 : value(l->x_type, o.x, from) - o.x_zero;
            for (int64_t k = 0; k < width; ++k)
                sums[k] += x * weights[k];
            weights += width;
        } while (next(l, l->groups, l->terms, at));
        for (int64_t k = 0; k < width; ++k)
            reals(y)[to + k * step] += sums[k];
    } while (next(l, 0, l->groups, at));
    free(row.memory);
    return y;
}

static double clamped(double y, const float *clamp)
{
    return clamp ? fmin(fmax(y, clamp[0]), clamp[1]) : y;
}

/* What becomes of a whole sum with 8-bit results. Every operation is rounded to f32: volatile keeps
 * compilers from joining two of them. */
static double scaled(const layer *l, int64_t i, double sum, operands o)
{
    volatile float real = (float)sum, other = 0;
    real = real * o.to->scale[i / l->inner % l->bias];
    if (o.residual)
        other = (float)(value(l->y_type, o.residual, i) - o.to->residual_zero);
    other = other * o.to->residual_scale;
    real = real + other;
    return rint(clamped(real, o.clamp)) + o.to->y_zero;
}

/* A sum with all that is added to it. */
static double total(const layer *l, int64_t i, double sum, operands o)
{
    sum += o.bias ? value(l->sum_type, o.bias, i / l->inner % l->bias) : 0;
    return sum + (o.residual && !narrow(l->y_type) ? value(l->y_type, o.residual, i) : 0);
}

/* How far element i may be from `expected`: the activation's error, then two roundings to y. */
static double error_of(const layer *l, int64_t i, double sum, operands o, double expected)
{
    const double rounded = l->y_type == F32 ? 0x1p-23 : l->y_type == BF16 ? 0x1p-7 : 0x1p-10;
    if (!l->activation)
        return 0;
    return l->error * fmax(fabs(total(l, i, sum, o)), 1) + rounded * fabs(expected);
}

/* Element i of the result as y holds it. */
static double finished(const layer *l, int64_t i, double sum, operands o)
{
    _Alignas(64) unsigned char held[4];
    sum = total(l, i, sum, o);
    if (l->activation)
        sum = l->activation(sum);
    sum = narrow(l->y_type) ? scaled(l, i, sum, o) : clamped(sum, o.clamp);
    put(l->y_type, held, 0, sum);
    return value(l->y_type, held, 0);
}
