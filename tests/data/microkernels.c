/* Drives every instantiation of the microkernel template through random cases and compares it with
 * plain loops.  Before this text: the template, and CASES(name, rows, vecs, diagonal) lines made of
 * kernels.def as KERNELS.  Values are small integers, so sums are exact in any order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, SLACK = 64 };

typedef struct {
    int lanes, wrap, accumulate, runs, stream;
    uint32_t rows[RUNS];
    int64_t a_at[RUNS], b_at[RUNS], length[RUNS];
    int64_t a_k, a_outer, a_inner, c_outer, c_inner, c_col;
} test_case;

typedef void kernel(const test_case *, const float *, const float *, float *, const ps_epilogue *);

#define CASES(name, rows_, vecs_, diagonal_)                                                       \
    kernel name;                                                                                   \
    PS_KERNEL void name(const test_case *v, const float *a, const float *b, float *c,              \
                        const ps_epilogue *e)                                                      \
    {                                                                                              \
        const ps_tile t = {.rows = rows_, .vecs = vecs_, .diagonal = diagonal_, .wrap = v->wrap,   \
                           .lanes = v->lanes, .a_outer = v->a_outer, .a_inner = v->a_inner,        \
                           .c_outer = v->c_outer, .c_inner = v->c_inner, .c_col = v->c_col,        \
                           .stream = v->stream};                                                   \
        ps_vec acc[(rows_) * (vecs_)];                                                             \
        ps_begin(acc, t, c, v->accumulate);                                                        \
        for (int i = 0; i < v->runs; ++i)                                                          \
            ps_run(acc, t, v->rows[i], a + v->a_at[i], b + v->b_at[i], v->length[i], v->a_k);      \
        ps_end(acc, t, c, e);                                                                      \
    }
KERNELS
#undef CASES

typedef struct {
    const char *name;
    kernel *run;
    int rows, vecs, diagonal;
} entry;

#define CASES(name, rows, vecs, diagonal) {#name, name, rows, vecs, diagonal},
static const entry table[] = {KERNELS};

/* Memory between guard pages: an operand starts at its start, or ends at its end. */
typedef struct {
    float *start, *end;
} region;

enum { OF_A, OF_B, OF_C, OF_BIAS, OF_RESIDUAL, OPERANDS };

static uint64_t state;

static int64_t below(int64_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)limit);
}

static void fill(float *p, int64_t size)
{
    for (int64_t i = 0; i < size; ++i)
        p[i] = (float)(below(9) - 4);
}

static int64_t a_row(const test_case *v, int i)
{
    return i / v->wrap * v->a_outer + i % v->wrap * v->a_inner;
}

static int64_t c_at(const test_case *v, int i, int j)
{
    return i / v->wrap * v->c_outer + i % v->wrap * v->c_inner + j * v->c_col;
}

static test_case random_case(entry k, int lanes, int runs)
{
    test_case v = {.lanes = lanes, .runs = runs, .accumulate = (int)below(2)};
    v.stream = lanes == PS_LANES && below(2);
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    v.wrap = 1 + (int)below(k.rows);
    v.a_k = below(2) ? 1 : 1 + below(40);
    v.a_inner = 1 + below(20);
    v.a_outer = 1 + below(90);
    if (v.stream) { /* whole vectors, one behind the other */
        v.c_col = 1;
        v.c_inner = cols + below(2) * PS_LANES;
        v.c_outer = v.wrap * v.c_inner + below(3) * PS_LANES;
    } else if (below(3)) { /* rows of C, dense or apart */
        v.c_col = 1;
        v.c_inner = cols + below(2) * below(9);
        v.c_outer = v.wrap * v.c_inner + below(2) * below(9);
    } else { /* columns apart */
        v.c_inner = 1 + below(2);
        v.c_outer = v.wrap * v.c_inner + below(5);
        v.c_col = (k.rows / v.wrap + 1) * v.c_outer + below(5);
    }
    for (int i = 0; i < runs; ++i) {
        const uint32_t all = k.rows < 32 ? (1u << k.rows) - 1 : ~0u;
        v.rows[i] = below(2) ? all : all & (uint32_t)below((int64_t)1 << 32);
        v.length[i] = below(6);
        v.a_at[i] = below(60) - 30;
        v.b_at[i] = below(4) * 40;
    }
    return v;
}

/* Least and greatest element of A that active rows read, and one past the last of B. */
static void reach(entry k, const test_case *v, int64_t *low, int64_t *high, int64_t *b)
{
    const int64_t last = k.diagonal ? (k.vecs - 1) * PS_LANES + v->lanes - 1 : 0;
    *low = INT64_MAX, *high = INT64_MIN, *b = 0;
    for (int n = 0; n < v->runs; ++n) {
        if (!v->length[n])
            continue;
        *b = ps_most(*b, v->b_at[n] + v->length[n] * k.vecs * PS_LANES);
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

static double expected(entry k, const test_case *v, int i, int j, const float *a, const float *b,
                       float before, const ps_epilogue *e)
{
    double sum = v->accumulate ? before : 0;
    for (int n = 0; n < v->runs; ++n)
        if (v->rows[n] >> i & 1)
            for (int64_t x = 0; x < v->length[n]; ++x)
                sum += (double)a[v->a_at[n] + a_row(v, i) + x * v->a_k + (k.diagonal ? j : 0)] *
                       (double)b[v->b_at[n] + x * k.vecs * PS_LANES + j];
    if (e && e->bias)
        sum += e->bias[j];
    if (e && e->residual)
        sum += e->residual[c_at(v, i, j)];
    if (e && e->clamp)
        sum = sum < e->clamp[0] ? e->clamp[0] : sum > e->clamp[1] ? e->clamp[1] : sum;
    return sum;
}

#ifdef SANITIZED
/* The sanitizer watches both ends of a block. */
static float *placed(region r, int64_t size, int at_end, int64_t *slack)
{
    (void)r, (void)at_end, *slack = 0;
    return malloc((size_t)size * sizeof(float));
}
static void freed(float *p) { free(p); }
#else
static float *placed(region r, int64_t size, int at_end, int64_t *slack)
{
    *slack = ps_least(SLACK, r.end - r.start - size);
    return at_end ? r.end - size : r.start;
}
static void freed(float *p) { (void)p; }
#endif

/* A pattern for elements that must stay as they are. */
static float untouched(int64_t at) { return (float)(1000 + at % 97); }

static int wrong_c(entry k, const test_case *v, const float *c, const float *want, int64_t size,
                   char *message, size_t room)
{
    for (int64_t at = 0; at < size; ++at)
        if (!(c[at] == want[at])) {
            snprintf(message, room,
                     "%s lanes=%d runs=%d wrap=%d accumulate=%d stream=%d c_col=%d: C at %d: "
                     "expected %g, got %g", k.name, v->lanes, v->runs, v->wrap, v->accumulate,
                     v->stream, (int)v->c_col, (int)at, (double)want[at], (double)c[at]);
            return 1;
        }
    return 0;
}

static int failed(entry k, int lanes, int runs, const region *regions, char *message, size_t room)
{
    const test_case v = random_case(k, lanes, runs);
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    const float clamp[2] = {-20, 31};
    const uint32_t parts = (uint32_t)below(16), ends = (uint32_t)below(32);
    int64_t low, high, b_size, c_size = c_at(&v, k.rows - 1, cols - 1), slack, idle;
    reach(k, &v, &low, &high, &b_size);
    for (int i = 0; i < k.rows; ++i)
        c_size = ps_most(c_size, c_at(&v, i, cols - 1));
    c_size += 1;
    float *a = placed(regions[OF_A], high - low + 1, ends & 1, &idle);
    float *b = placed(regions[OF_B], b_size, ends & 2, &idle);
    float *c = placed(regions[OF_C], c_size, ends & 4, &slack);
    float *bias = placed(regions[OF_BIAS], cols, ends & 8, &idle);
    float *residual = placed(regions[OF_RESIDUAL], c_size, ends & 16, &idle);
    const ps_epilogue e = {.bias = parts & 1 ? bias : 0,
                           .residual = parts & 2 ? residual : 0,
                           .clamp = parts & 4 ? clamp : 0,
                           .aligned = (uintptr_t)c % sizeof(ps_vec) == 0 && below(4)};
    const ps_epilogue *used = parts ? &e : 0;
    float *around = ends & 4 ? c - slack : c, *want = malloc((size_t)(c_size + slack) * 4);
    const int64_t shift = c - around;
    fill(a, high - low + 1), fill(b, b_size), fill(bias, cols), fill(residual, c_size);
    for (int64_t at = 0; at < c_size + slack; ++at)
        around[at] = want[at] = untouched(at);
    for (int i = 0; i < k.rows; ++i)
        for (int j = 0; j < cols; ++j) {
            float *place = &c[c_at(&v, i, j)];
            *place = v.accumulate ? (float)(below(9) - 4) : (float)(0.0 / 0.0);
            want[shift + c_at(&v, i, j)] = (float)expected(k, &v, i, j, a - low, b, *place, used);
        }
    k.run(&v, a - low, b, c, used);
    ps_fence();
    const int wrong = wrong_c(k, &v, around, want, c_size + slack, message, room);
    free(want), freed(a), freed(b), freed(c), freed(bias), freed(residual);
    return wrong;
}

int kernels(void);
const char *name_of(int index);
int check(int index, const region *regions, char *message, size_t room);

int kernels(void) { return (int)(sizeof table / sizeof *table); }
const char *name_of(int index) { return table[index].name; }

/* 0 if every case of a kernel is right, else 1 and what differed. */
int check(int index, const region *regions, char *message, size_t room)
{
    state = 1;
    for (int lanes = 1; lanes <= PS_LANES; ++lanes)
        for (int runs = 1; runs <= RUNS; ++runs)
            for (int times = 0; times < 3; ++times)
                if (failed(table[index], lanes, runs, regions, message, room))
                    return 1;
    return 0;
}

#ifdef SANITIZED
int main(void)
{
    char message[500];
    const region none[OPERANDS] = {{0, 0}};
    for (int index = 0; index < kernels(); ++index)
        if (check(index, none, message, sizeof message)) {
            puts(message);
            return 1;
        }
    return 0;
}
#endif
