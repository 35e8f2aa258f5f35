/* Drives every instantiation of the microkernel template through random cases and compares it with
 * plain loops.  Before this text: the headers of a unit; CASES(name, rows, vecs, diagonal, shifts,
 * together) lines made of kernels.def as KERNELS; of the unit TYPE_X, TYPE_A, TYPE_B, TYPE_Y, the limits of x and w,
 * WHOLE (sums are), SCALED (to 8 bits), SPLIT (y holds sums), FLUSHES and COPY_FLUSHES (denormals
 * become zeros), FLIP (what kernels add to x).  Of floats, values are small integers: sums are exact in any order. */
#include <string.h>

enum { RUNS = 9 };

#define VALUE_A GLUE(value, TYPE_A)
#define VALUE_B GLUE(value, TYPE_B)
#define VALUE_Y GLUE(value, TYPE_Y)
#define NEAREST_A GLUE(nearest, TYPE_A)
#define NEAREST_B GLUE(nearest, TYPE_B)
#define NEAREST_Y GLUE(nearest, TYPE_Y)

typedef struct {
    int lanes, wrap, accumulate, begun, runs, stream, width, filled, zero, mild;
    uint64_t pixels;
    uint32_t rows[RUNS];
    int64_t a_at[RUNS], b_at[RUNS], length[RUNS];
    int64_t a_k, a_outer, a_inner, c_outer, c_inner, c_col;
} test_case;

/* One run by ps_slide: row i of a line of `wrap` starts `every` pixels behind the one before, pixels
 * lie `step` apart; bit o * span + p says whether pixel p of line o is real.  No taps: ps_run. */
typedef struct {
    int wrap, every, taps;
    int64_t step;
} slide;

#if SCALED
#define BEGIN(acc, t, c, e, v) ((t).begun ? ps_begin_offset(acc, t, e) : ps_begin(acc, t, c, 0))
#else
#define BEGIN(acc, t, c, e, v) ps_begin(acc, t, c, SPLIT && (v)->accumulate)
#endif

#define GROUPED(shifts, together) ((shifts) > 1 || (together) > 1)

typedef void kernel(const test_case *, const ps_a *, const ps_b *, ps_y *, const ps_epilogue *);

#define CASES(name, rows_, vecs_, diagonal_, shifts_, together_)                                  \
    kernel name;                                                                                   \
    PS_KERNEL void name(const test_case *v, const ps_a *a, const ps_b *b, ps_y *c,                 \
                        const ps_epilogue *e)                                                      \
    {                                                                                              \
        const ps_tile t = {.rows = rows_, .vecs = vecs_, .diagonal = diagonal_, .shifts = shifts_, \
                           .wrap = v->wrap, .lanes = v->lanes, .stream = v->stream,                \
                           .begun = v->begun, .together = together_,                               \
                           .a_outer = v->a_outer, .a_inner = v->a_inner, .c_outer = v->c_outer,    \
                           .c_inner = v->c_inner, .c_col = v->c_col};                              \
        ps_acc acc[(rows_) * (vecs_) * (shifts_)];                                                 \
        if (t.together > 1)                                                                        \
            ps_begin(acc, t, c, 0);                                                                \
        else                                                                                       \
            BEGIN(acc, t, c, e, v);                                                                \
        for (int i = 0; i < v->runs; ++i) {                                                        \
            const ps_a *p = a + v->a_at[i];                                                        \
            const ps_b *q = b + v->b_at[i];                                                        \
            const int64_t length = v->length[i];                                                   \
            if (WHOLE && v->filled)                                                                \
                (GROUPED(shifts_, together_) ? ps_run_grouped_filled : ps_run_filled)(             \
                    acc, t, v->rows[i], v->zero, p, q, length, v->a_k, v->width);                  \
            else if ((diagonal_) || PS_WORD == 1 || v->width == PS_WORD)                           \
                (GROUPED(shifts_, together_) ? ps_run_grouped : ps_run)(                           \
                    acc, t, v->rows[i], p, q, length, v->a_k);                                     \
            else                                                                                   \
                ps_run_part(acc, t, v->rows[i], p, q, length, v->a_k, v->width);                   \
        }                                                                                          \
        if (GROUPED(shifts_, together_))                                                           \
            ps_unshift(acc, t);                                                                    \
        if (t.together > 1 && SPLIT && v->accumulate)                                              \
            ps_accumulate(acc, t, c);                                                              \
        ps_unpair(acc, t);                                                                         \
        ps_end(acc, t, c, e);                                                                      \
    }
KERNELS
#undef CASES

typedef struct {
    const char *name;
    kernel *run;
    int rows, vecs, diagonal, shifts, together;
    slide by;
} entry;

#define CASES(name, rows, vecs, diagonal, shifts, together)                                        \
    {#name, name, rows, vecs, diagonal, shifts, together, {0, 0, 0, 0}},
static const entry table[] = {KERNELS};

enum { OF_A, OF_B, OF_C, OF_BIAS, OF_RESIDUAL, OF_OFFSET, OF_SCALE, OPERANDS };

/* How an operand is filled: any numbers, only the least and the greatest, one of them throughout, or
 * small ones, whose scaled sums do not saturate. */
enum { ANY, ENDS, LEAST, GREATEST, SMALL };

static double any(int style, int low, int high)
{
    const int greatest = style == ENDS ? (int)below(2) : style == GREATEST;
    if (style == ANY || style == SMALL) {
        const int64_t first = style == ANY ? low : ps_most(low, -2);
        return (double)(first + below((style == ANY ? high : 2) - first + 1));
    }
    return greatest ? high : low;
}

static int any_style(int mild) { return mild ? SMALL : below(3) ? ANY : ENDS + (int)below(3); }

static void fill_a(ps_a *p, int64_t size, int mild)
{
    const int style = any_style(mild);
    for (int64_t i = 0; i < size; ++i)
        p[i] = NEAREST_A(any(style, X_LOW, X_HIGH));
}

/* Zeros behind the `width` elements of a word that have a partner in A. */
static void fill_b(ps_b *p, int64_t size, int width, int mild)
{
    const int style = any_style(mild);
    for (int64_t i = 0; i < size; ++i)
        p[i] = NEAREST_B(i % PS_WORD < width ? any(style, W_LOW, W_HIGH) : 0);
}

static void fill_y(ps_y *p, int64_t size)
{
    for (int64_t i = 0; i < size; ++i)
        p[i] = NEAREST_Y(SCALED ? (double)(below(256) - 128 * (NEAREST_Y(-1) < 0)) : below(9) - 4);
}

static int64_t a_row(const test_case *v, int i)
{
    return i / v->wrap * v->a_outer + i % v->wrap * v->a_inner;
}

static int64_t c_at(const test_case *v, int i, int j)
{
    return i / v->wrap * v->c_outer + i % v->wrap * v->c_inner + j * v->c_col;
}

/* Whether vectors of A come two by two, as even and odd elements. */
static int paired(entry k)
{
    return PS_PAIRS && k.diagonal && !GROUPED(k.shifts, k.together) && k.vecs > 1;
}

/* Elements of a word that have a partner in A. */
static int partners(entry k, const test_case *v) { return k.diagonal ? k.together : v->width; }

static void place_c(test_case *v, entry k, int cols)
{
    if (v->stream) { /* whole vectors, one behind the other */
        v->c_col = 1;
        v->c_inner = cols + below(2) * PS_LANES;
        v->c_outer = v->wrap * v->c_inner + below(3) * PS_LANES;
    } else if (below(3)) { /* rows of C, dense or apart */
        v->c_col = 1;
        v->c_inner = cols + below(2) * below(9);
        v->c_outer = v->wrap * v->c_inner + below(2) * below(9);
    } else { /* columns apart */
        v->c_inner = 1 + below(2);
        v->c_outer = v->wrap * v->c_inner + below(2) * below(5);
        v->c_col = (k.rows / v->wrap + 1) * v->c_outer + below(5);
    }
}

static test_case random_case(entry k, int lanes, int runs)
{
    test_case v = {.lanes = lanes, .runs = runs, .accumulate = SPLIT && below(2) && !paired(k),
                   .begun = SCALED && (lanes + runs) % 2 && k.together == 1};
    v.stream = lanes == PS_LANES && below(2);
    v.filled = WHOLE && below(2);
    v.mild = below(2) != 0;
    v.width = k.diagonal || below(2) ? PS_WORD : 1 + (int)below(PS_WORD);
    v.zero = (int)any(any_style(v.mild), X_LOW, X_HIGH);
    v.wrap = 1 + (int)below(k.rows);
    v.a_k = below(2) ? 1 : 1 + below(40);
    v.a_inner = 1 + below(20);
    v.a_outer = 1 + below(90);
    if (k.by.taps) {
        v.wrap = k.by.wrap, v.a_inner = k.by.every * k.by.step;
        v.pixels = below(2) ? ~0ull : (uint64_t)below(1ll << 62) << 2 | (uint64_t)below(4);
    }
    place_c(&v, k, (k.vecs - 1) * PS_LANES + lanes);
    for (int i = 0; i < runs; ++i) {
        const uint32_t all = k.rows < 32 ? (1u << k.rows) - 1 : ~0u;
        v.rows[i] = below(2) ? all : all & (uint32_t)below((int64_t)1 << 32);
        v.length[i] = below(6);
        v.a_at[i] = below(60) - 30;
        v.b_at[i] = below(4) * 10 * PS_WORD;
    }
#ifdef LONG_RUNS /* words of A beside each other along k, or down the rows */
    v.a_k = below(2) ? PS_WORD : v.a_k;
    if (below(2))
        v.a_inner = PS_WORD, v.a_outer = v.wrap * PS_WORD;
    for (int i = 0; i < runs; ++i)
        v.length[i] = below(3) ? v.length[i] : below(70);
#endif
    return v;
}

/* Rows of a line, and the pixels that they read. */
static int wide(entry k) { return k.rows < k.by.wrap ? k.rows : k.by.wrap; }
static int span(entry k) { return (wide(k) - 1) * k.by.every + k.by.taps; }

/* What `reach` finds, of a run by ps_slide. */
static void reach_slid(entry k, const test_case *v, int64_t *low, int64_t *high, int64_t *b)
{
    *b = v->b_at[0] + k.by.taps * k.vecs * PS_LANES * PS_WORD;
    for (int o = 0; o < (k.rows + wide(k) - 1) / wide(k); ++o)
        for (int p = 0; p < span(k); ++p)
            if (v->pixels >> (o * span(k) + p) & 1) {
                const int64_t at = v->a_at[0] + o * v->a_outer + p * k.by.step;
                *low = ps_least(*low, at);
                *high = ps_most(*high, at + (k.vecs - 1) * PS_LANES + v->lanes - 1);
            }
}

/* Least and greatest element of A that active rows read, and one past the last of B. */
static void reach(entry k, const test_case *v, int64_t *low, int64_t *high, int64_t *b)
{
    const int64_t last = k.diagonal ? (k.vecs - 1) * PS_LANES + v->lanes - 1 : v->width - 1;
    *low = INT64_MAX, *high = INT64_MIN, *b = 0;
    if (k.by.taps)
        reach_slid(k, v, low, high, b);
    for (int n = 0; n < v->runs && !k.by.taps; ++n) {
        if (!v->length[n])
            continue;
        *b = ps_most(*b, v->b_at[n] + v->length[n] * k.shifts * k.vecs * PS_LANES * PS_WORD);
        for (int i = 0; i < k.rows; ++i)
            if (v->rows[n] >> i & 1) {
                const int64_t first = v->a_at[n] + a_row(v, i);
                *low = ps_least(*low, first);
                *high = ps_most(*high, first + (v->length[n] - 1) * v->a_k + last);
            }
    }
    if (*low > *high)
        *low = 0, *high = -1;
}

/* The channel whose element e of a word shift d multiplies for column j. */
static int64_t channel_of(entry k, int j, int d, int64_t e)
{
    const int word = k.together, lane = j % (word * PS_LANES) / word;
    return word > 1 ? j - j % (word * PS_LANES) + (lane ^ d) * word + e : j ^ d;
}

/* Where what shift d has for column j stands in a row of B. */
static int64_t place_of(entry k, int column, int d)
{
    const int j = k.together > 1 ? column : column ^ d, word = k.together > 1 ? k.together : 2;
    const int first = j - j % (word * PS_LANES), at = j - first;
    if (k.together > 1)
        return first + at % word * PS_LANES + (at / word ^ d);
    return paired(k) && first + PS_LANES < k.vecs * PS_LANES ? first + at % 2 * PS_LANES + at / 2 : j;
}

/* What step x of run n adds to column j: the products of a word, or those of its group. */
static double added(entry k, const test_case *v, int n, int i, int j, int64_t x, const ps_a *a,
                    const ps_b *b)
{
    const int real = v->rows[n] >> i & 1, used = (k.vecs - 1) * PS_LANES + v->lanes;
    const int64_t columns = k.vecs * PS_LANES, row = v->a_at[n] + a_row(v, i) + x * v->a_k;
    double sum = 0;
    for (int d = 0; d < k.shifts; ++d)
        for (int64_t e = 0; e < partners(k, v); ++e) {
            const int64_t column = (x * k.shifts + d) * columns + place_of(k, j, d);
            const double of_b = VALUE_B(b[v->b_at[n] + column * PS_WORD + e]);
            const int64_t channel = channel_of(k, j, d, e);
            if (!real)
                sum += (double)(v->zero + FLIP) * of_b;
            else if (channel < used)
                sum += (VALUE_A(a[row + (k.diagonal ? channel : e)]) + FLIP) * of_b;
        }
    return sum;
}

/* The products of one element of C in a run by ps_slide. */
static double slid(entry k, const test_case *v, int i, int j, const ps_a *a, const ps_b *b)
{
    const int o = i / wide(k);
    double sum = 0;
    for (int s = 0; s < k.by.taps; ++s) {
        const int p = i % wide(k) * k.by.every + s;
        const int64_t at = v->a_at[0] + o * v->a_outer + p * k.by.step + j;
        const int64_t column = s * k.vecs * PS_LANES + place_of(k, j, 0);
        const double of_b = VALUE_B(b[v->b_at[0] + column * PS_WORD]);
        if (v->pixels >> (o * span(k) + p) & 1)
            sum += (VALUE_A(a[at]) + FLIP) * of_b;
        else if (v->filled)
            sum += (double)(v->zero + FLIP) * of_b;
    }
    return sum;
}

/* The sum of products of one element of C. */
static double product(entry k, const test_case *v, int i, int j, const ps_a *a, const ps_b *b)
{
    double sum = k.by.taps ? slid(k, v, i, j, a, b) : 0;
    if (k.by.taps)
        return sum;
    for (int n = 0; n < v->runs; ++n)
        if (v->rows[n] >> i & 1 || v->filled)
            for (int64_t x = 0; x < v->length[n]; ++x)
                sum += added(k, v, n, i, j, x, a, b);
    return sum;
}

/* f32 step by step; no two of them fuse. */
static double scaled(double sum, int j, const ps_y *residual, const ps_epilogue *e)
{
    volatile float real = (float)sum, other = 0;
    real = real * e->scale[j];
    if (residual) {
        other = (float)(VALUE_Y(*residual) - e->to->residual_zero);
        other = other * e->to->residual_scale;
        real = real + other;
    }
    if (e->clamp)
        real = (float)between(real, e->clamp[0], e->clamp[1]);
    return even(between(real, -0x1p30, 0x1p30)) + e->to->y_zero;
}

static ps_y expected(double sum, int j, const ps_y *residual, const ps_epilogue *e)
{
    if (e && WHOLE)
        sum += e->offset[j];
    if (e && !WHOLE)
        sum *= (double)e->alpha;
    if (e && e->bias)
        sum += (double)e->bias[j];
    if (SCALED)
        return NEAREST_Y(scaled(sum, j, residual, e));
    if (residual)
        sum += VALUE_Y(*residual) * (WHOLE ? 1 : (double)e->beta);
    if (e && e->clamp)
        sum = between(sum, e->clamp[0], e->clamp[1]);
    return NEAREST_Y(sum);
}

/* How many elements from the first of C to its last. */
static int64_t size_of_c(entry k, const test_case *v, int cols)
{
    int64_t size = 0;
    for (int i = 0; i < k.rows; ++i)
        size = ps_most(size, c_at(v, i, cols - 1) + 1);
    return size;
}

/* Fill what belongs to columns, and say which parts of the epilogue apply. */
static ps_epilogue any_epilogue(int cols, int mild, ps_bias *bias, int32_t *offset, float *scale,
                                polysci_scales *to)
{
    static const float clamps[][2] = {{-20, 31}, {0, INFINITY}, {-INFINITY, 6.5f}};
    static const float factors[] = {1, 0.5f, -2}; /* of sums and residuals, without rounding */
    static const float scales[] = {0.5f, 1.0f / 6, 1.0f / 10}; /* results that are nearly ties */
    const int64_t most = mild ? 100 : below(4) ? 1 << 15 : 1 << 29;
    const int finer = (int)below(24);
    for (int j = 0; j < cols; ++j) {
        bias[j] = (ps_bias)((double)(below(2001) - 1000) / (mild ? 8 : 1) / (WHOLE ? 1 : 64));
        offset[j] = (int32_t)(below(2 * most) - most);
        scale[j] = mild ? scales[below(3)] : (float)ldexp(1 + (double)below(1 << 20), -finer - 20);
    }
    if (cols > 1 && !below(8))
        scale[1] = 1e30f;
    const float finely = (float)(below(1000) + 1) / 333;
    *to = (polysci_scales){scale, below(2) ? scales[below(3)] : finely, (int32_t)below(256) - 128,
                           (int32_t)below(384) - 128};
    return (ps_epilogue){.bias = below(2) ? bias : 0, .clamp = below(2) ? clamps[below(3)] : 0,
                         .offset = offset, .scale = scale, .to = to,
                         .alpha = factors[below(3)], .beta = factors[below(3)]};
}

/* Compare C and what is around it with what is wanted, `shift` elements before C. */
static int wrong_c(entry k, const test_case *v, const ps_y *c, const ps_y *want, int64_t size,
                   int64_t shift, char *message, size_t room)
{
    for (int64_t at = 0; at < size; ++at) {
        const double got = VALUE_Y(c[at]), wanted = VALUE_Y(want[at]);
        if (memcmp(&c[at], &want[at], sizeof *c) && !(got == wanted)) {
            snprintf(message, room,
                     "%s lanes=%d runs=%d wrap=%d accumulate=%d stream=%d c_col=%d width=%d "
                     "filled=%d: C at %d: expected %g, got %g", k.name, v->lanes, v->runs, v->wrap,
                     v->accumulate, v->stream, (int)v->c_col, v->width, v->filled,
                     (int)(at - shift), wanted, got);
            return 1;
        }
    }
    return 0;
}

static int failed(entry k, int lanes, int runs, const region *regions, char *message, size_t room)
{
    const test_case v = random_case(k, lanes, runs);
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    const uint32_t ends = (uint32_t)below(128);
    const int64_t c_size = size_of_c(k, &v, cols);
    int64_t low, high, b_size, slack, idle;
    reach(k, &v, &low, &high, &b_size);
    ps_a *a = placed(regions[OF_A], high - low + 1, sizeof *a, ends & 1, &idle);
    ps_b *b = placed(regions[OF_B], b_size, sizeof *b, ends & 2, &idle);
    ps_y *c = placed(regions[OF_C], c_size, sizeof *c, ends & 4, &slack);
    ps_bias *bias = placed(regions[OF_BIAS], cols, sizeof *bias, ends & 8, &idle);
    ps_y *residual = placed(regions[OF_RESIDUAL], c_size, sizeof *c, ends & 16, &idle);
    int32_t *offset = placed(regions[OF_OFFSET], cols, sizeof *offset, ends & 32, &idle);
    float *scale = placed(regions[OF_SCALE], cols, sizeof *scale, ends & 64, &idle);
    polysci_scales to;
    ps_epilogue e = any_epilogue(cols, v.mild, bias, offset, scale, &to);
    e.residual = below(2) ? residual : 0;
    e.aligned = (uintptr_t)c % sizeof(ps_vec) == 0 && below(4);
    const ps_epilogue *used = SCALED || below(8) ? &e : 0;
    ps_y *around = ends & 4 ? c - slack : c, *want = malloc((size_t)(c_size + slack) * sizeof *c);
    const int64_t shift = c - around;
    fill_a(a, high - low + 1, v.mild), fill_b(b, b_size, partners(k, &v), v.mild);
    fill_y(residual, c_size);
    untouched(around, (c_size + slack) * (int64_t)sizeof *c);
    for (int i = 0; i < k.rows; ++i)
        for (int j = 0; j < cols; ++j) {
            if (v.accumulate)
                fill_y(&c[c_at(&v, i, j)], 1);
            else if (!WHOLE)
                c[c_at(&v, i, j)] = NEAREST_Y((double)NAN);
        }
    memcpy(want, around, (size_t)(c_size + slack) * sizeof *c);
    for (int i = 0; i < k.rows; ++i)
        for (int j = 0; j < cols; ++j) {
            const int64_t at = c_at(&v, i, j);
            const double sum = product(k, &v, i, j, a - low, b);
            want[shift + at] = expected(sum + (v.accumulate ? VALUE_Y(c[at]) : 0), j,
                                        used && e.residual ? &residual[at] : 0, used);
        }
#if SCALED
    float limits[2];
    e.clamp = ps_limits(limits, e.clamp, &to, cols);
#endif
    k.run(&v, a - low, b, c, used);
    ps_fence();
    const int wrong = wrong_c(k, &v, around, want, c_size + slack, shift, message, room);
    free(want), freed(a), freed(b), freed(c), freed(bias), freed(residual);
    freed(offset), freed(scale);
    return wrong;
}
