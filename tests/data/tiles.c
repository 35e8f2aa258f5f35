/* Drives the steps of brgemm_amx.h through random register tiles and compares them with plain
 * loops.  Before this text: the steps for one ps_a, and KERNELS, `CASES(name, rows, vecs)` lines
 * made of kernels.def.  Values are integers, so sums are exact in any order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SANITIZED
enum { TIMES = 1 };
#else
enum { TIMES = 2 };
#endif
enum { RUNS = 9, SLACK = 256, REAL_A = sizeof(ps_a) == 2 };

typedef struct {
    int lanes, wrap, words, accumulate, runs, stream, zero, filled[RUNS];
    uint64_t rows[RUNS];
    int64_t a_at[RUNS], b_at[RUNS], length[RUNS], width[RUNS];
    int64_t a_k, a_outer, a_inner, c_outer, c_inner, c_col;
} test_case;

typedef struct {
    const char *name;
    int rows, vecs;
} entry;

#define CASES(name, rows, vecs) {#name, rows, vecs},
static const entry table[] = {KERNELS};

/* Memory between guard pages: an operand starts at its start, or ends at its end. */
typedef struct {
    char *start, *end;
} region;

enum { OF_A, OF_B, OF_C, OF_BIAS, OF_RESIDUAL, OPERANDS };

static uint64_t state;

static int64_t below(int64_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)limit);
}

static uint64_t bits(void)
{
    const uint64_t high = (uint64_t)below(1ll << 31), low = (uint64_t)below(1ll << 31);
    return high << 33 ^ low << 11 ^ high >> 9;
}

static ps_tile tile_of(entry k, const test_case *v)
{
    const ps_tile t = {.rows = k.rows, .vecs = k.vecs, .wrap = v->wrap, .lanes = v->lanes,
                       .a_outer = v->a_outer, .a_inner = v->a_inner, .c_outer = v->c_outer,
                       .c_inner = v->c_inner, .c_col = v->c_col, .stream = v->stream,
                       .words = v->words};
    return t;
}

/* Noinline: sizes are not constants here, one instance serves all register tiles. */
static PS_KERNEL void run(ps_tile t, const test_case *v, const ps_a *a, const ps_b *b, ps_y *c,
                          const ps_epilogue *e)
{
    int configured = 0;
    ps_acc acc[64];
    ps_tiles_configure(&configured, t);
    ps_begin(acc, t, c, v->accumulate);
    for (int i = 0; i < v->runs; ++i)
        if (v->filled[i])
            ps_run_filled(acc, t, v->rows[i], v->zero, a + v->a_at[i], b + v->b_at[i],
                          v->length[i], v->a_k, (int)v->width[i]);
        else if (v->width[i] == PS_WORD)
            ps_run(acc, t, v->rows[i], a + v->a_at[i], b + v->b_at[i], v->length[i], v->a_k);
        else
            ps_run_part(acc, t, v->rows[i], a + v->a_at[i], b + v->b_at[i], v->length[i], v->a_k,
                        (int)v->width[i]);
    ps_end(acc, t, c, e);
    ps_tiles_release(&configured);
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
    v.words = below(2) ? (int)below(17) : 0;
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    v.zero = REAL_A ? 0 : (int)below(256) - ((ps_a)-1 < 0 ? 128 : 0);
    v.wrap = 1 + (int)below(below(2) ? k.rows : ps_least(k.rows, 16));
    v.a_k = below(3) ? PS_WORD : 1 + below(40);
    v.a_inner = 1 + below(20);
    switch (below(3)) { /* rows in gaps of a few pixels, dense, anyhow */
    case 0: v.a_outer = (v.wrap + below(4)) * v.a_inner; break;
    case 1: v.a_outer = v.wrap * v.a_inner; break;
    default: v.a_outer = 1 + below(90);
    }
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
        v.c_outer = v.wrap * v.c_inner + below(2) * below(5);
        v.c_col = (k.rows / v.wrap + 1) * v.c_outer + below(5);
    }
    for (int i = 0; i < runs; ++i) {
        const uint64_t all = k.rows < 64 ? ((uint64_t)1 << k.rows) - 1 : ~(uint64_t)0;
        v.rows[i] = below(2) ? all : all & bits();
        v.length[i] = below(4) ? below(20) : below(71);
        v.filled[i] = !below(3);
        v.width[i] = below(3) ? PS_WORD : 1 + below(PS_WORD);
        v.a_at[i] = below(60) - 30;
        v.b_at[i] = below(4) * 40;
    }
    return v;
}

/* Least and greatest element of A that active rows read, and one past the last of B. */
static void reach(entry k, const test_case *v, int64_t *low, int64_t *high, int64_t *b)
{
    *low = INT64_MAX, *high = INT64_MIN, *b = 0;
    for (int n = 0; n < v->runs; ++n) {
        if (!v->length[n])
            continue;
        *b = ps_most(*b, v->b_at[n] + v->length[n] * k.vecs * PS_LANES * PS_WORD);
        for (int i = 0; i < k.rows; ++i)
            if (v->rows[n] >> i & 1) {
                const int64_t first = v->a_at[n] + a_row(v, i);
                *low = ps_least(*low, first);
                *high = ps_most(*high, first + (v->length[n] - 1) * v->a_k + v->width[n] - 1);
            }
    }
    if (*low > *high)
        *low = 0, *high = -1;
}

/* Elements as integers: bf16 holds -4..4, 8-bit types any value and often an extreme one. */
static int64_t value_of(int is_signed)
{
    if (REAL_A)
        return below(9) - 4;
    switch (below(4)) {
    case 0: return is_signed ? -128 : 255;
    case 1: return is_signed ? 127 : 0;
    default: return is_signed ? below(256) - 128 : below(256);
    }
}

static int64_t bf16_value(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return (int64_t)x;
}
static uint16_t bf16_bits(int64_t value)
{
    const float x = (float)value;
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return (uint16_t)(word >> 16);
}
#define VALUE(x) (REAL_A ? bf16_value((uint16_t)(x)) : (int64_t)(x))
#define BITS(T, value) (REAL_A ? (T)bf16_bits(value) : (T)(value))

static int64_t expected(entry k, const test_case *v, int i, int j, const ps_a *a, const ps_b *b,
                        int64_t before, const ps_epilogue *e)
{
    int64_t sum = v->accumulate ? before : 0;
    for (int n = 0; n < v->runs; ++n)
        for (int64_t x = 0; x < v->length[n]; ++x) {
            const ps_a *left = a + v->a_at[n] + a_row(v, i) + x * v->a_k;
            const ps_b *right = b + v->b_at[n] + (x * k.vecs * PS_LANES + j) * PS_WORD;
            for (int64_t w = 0; w < PS_WORD; ++w)
                if (!(v->rows[n] >> i & 1)) /* all of a word, whatever its width */
                    sum += v->filled[n] ? v->zero * VALUE(right[w]) : 0;
                else if (w < v->width[n])
                    sum += VALUE(left[w]) * VALUE(right[w]);
        }
    if (e && e->offset)
        sum += e->offset[j];
    if (e && e->bias)
        sum += (int64_t)e->bias[j];
    if (e && e->residual)
        sum += (int64_t)e->residual[c_at(v, i, j)];
    if (e && e->clamp)
        sum = ps_most((int64_t)e->clamp[0], ps_least((int64_t)e->clamp[1], sum));
    return sum;
}

#ifdef SANITIZED
/* The sanitizer watches both ends of a block. */
static void *placed(region r, int64_t bytes, int at_end)
{
    (void)r, (void)at_end;
    return malloc((size_t)bytes);
}
static void freed(void *p) { free(p); }
#else
static void *placed(region r, int64_t bytes, int at_end)
{
    return at_end ? r.end - bytes : r.start;
}
static void freed(void *p) { (void)p; }
#endif

/* A pattern for elements that must stay as they are. */
static ps_y untouched(int64_t at) { return (ps_y)(1000 + at % 97); }

static int wrong_c(entry k, const test_case *v, const ps_y *c, const ps_y *want, int64_t size,
                   char *message, size_t room)
{
    for (int64_t at = 0; at < size; ++at)
        if (!(c[at] == want[at])) {
            snprintf(message, room,
                     "%s lanes=%d runs=%d wrap=%d words=%d a=%d,%d,%d accumulate=%d stream=%d c_col=%d: C "
                     "at %d: expected %g, got %g", k.name, v->lanes, v->runs, v->wrap,
                     v->words, (int)v->a_outer, (int)v->a_inner, (int)v->a_k, v->accumulate,
                     v->stream, (int)v->c_col, (int)at, (double)want[at], (double)c[at]);
            return 1;
        }
    return 0;
}

static int failed(entry k, int lanes, int runs, const region *regions, char *message, size_t room)
{
    const test_case v = random_case(k, lanes, runs);
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    const float clamp[2] = {-200, 310};
    static int32_t offset[64];
    const uint32_t parts = (uint32_t)below(16), ends = (uint32_t)below(32);
    int64_t low, high, b_size, c_size = 0;
    reach(k, &v, &low, &high, &b_size);
    for (int i = 0; i < k.rows; ++i)
        c_size = ps_most(c_size, c_at(&v, i, cols - 1) + 1);
    ps_a *a = placed(regions[OF_A], (high - low + 1) * (int64_t)sizeof *a, ends & 1);
    ps_b *b = placed(regions[OF_B], b_size * (int64_t)sizeof *b, ends & 2);
    ps_y *c = placed(regions[OF_C], c_size * (int64_t)sizeof *c, ends & 4);
    ps_bias *bias = placed(regions[OF_BIAS], cols * (int64_t)sizeof *bias, ends & 8);
    ps_y *residual = placed(regions[OF_RESIDUAL], c_size * (int64_t)sizeof *c, ends & 16);
    const ps_epilogue e = {.bias = parts & 1 ? bias : 0,
                           .residual = parts & 2 ? residual : 0,
                           .clamp = parts & 4 ? clamp : 0,
                           .offset = REAL_A ? 0 : offset,
                           .alpha = 1, .beta = 1,
                           .aligned = (uintptr_t)c % sizeof(ps_acc) == 0 && below(4)};
    const ps_epilogue *used = parts ? &e : 0;
    ps_y *want = malloc((size_t)c_size * sizeof *want);
    for (int64_t at = 0; at <= high - low; ++at)
        a[at] = BITS(ps_a, value_of((ps_a)-1 < 0));
    for (int64_t at = 0; at < b_size; ++at)
        b[at] = BITS(ps_b, value_of(1));
    for (int j = 0; j < cols; ++j)
        bias[j] = (ps_bias)(below(900) - 400), offset[j] = (int32_t)below(70000);
    for (int64_t at = 0; at < c_size; ++at) {
        residual[at] = (ps_y)(below(900) - 400);
        c[at] = want[at] = untouched(at);
    }
    for (int i = 0; i < k.rows; ++i)
        for (int j = 0; j < cols; ++j) {
            ps_y *place = &c[c_at(&v, i, j)];
            *place = (ps_y)(below(900) - 400);
            want[c_at(&v, i, j)] =
                (ps_y)expected(k, &v, i, j, a - low, b, (int64_t)*place, used);
        }
    run(tile_of(k, &v), &v, a - low, b, c, used);
    ps_fence();
    const int wrong = wrong_c(k, &v, c, want, c_size, message, room);
    free(want), freed(a), freed(b), freed(c), freed(bias), freed(residual);
    return wrong;
}

int kernels(void);
const char *name_of(int index);
int check(int index, int times, const region *regions, char *message, size_t room);

int kernels(void) { return (int)(sizeof table / sizeof *table); }
const char *name_of(int index) { return table[index].name; }

/* 0 if every case of a register tile is right, else 1 and what differed. */
int check(int index, int times, const region *regions, char *message, size_t room)
{
    state = (uint64_t)index;
    for (int lanes = 1; lanes <= PS_LANES; ++lanes)
        for (int turn = 0; turn < times * TIMES; ++turn)
            if (failed(table[index], lanes, 1 + (lanes + turn) % RUNS, regions, message, room))
                return 1;
    return 0;
}

#ifdef SANITIZED
int main(void)
{
    char message[500];
    const region none[OPERANDS] = {{0, 0}};
    for (int index = 0; index < kernels(); ++index)
        if (check(index, 1, none, message, sizeof message)) {
            puts(message);
            return 1;
        }
    return 0;
}
#endif
