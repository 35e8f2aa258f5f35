/* Drives every instantiation of the stencil template through random windows and compares it with plain
 * loops.  Before this text: the headers of a unit; CASES(name, rows, vecs, diagonal, every) lines made
 * of kernels.def as KERNELS.  Values are small integers: sums are exact in any order. */
#include <string.h>

typedef struct {
    int lanes, calls, columns, left, right;
    int64_t a_step, c_row;
    ps_window f;
} test_case;

typedef void kernel(const test_case *, const ps_a *, const ps_b *, ps_y *, const ps_epilogue *);

#define CASES(name, rows_, vecs_, diagonal_, every_)                                               \
    kernel name;                                                                                   \
    PS_KERNEL void name(const test_case *v, const ps_a *a, const ps_b *b, ps_y *c,                 \
                        const ps_epilogue *e)                                                      \
    {                                                                                              \
        const ps_tile t = {.rows = rows_, .vecs = vecs_, .wrap = rows_, .diagonal = diagonal_,     \
                           .lanes = v->lanes, .c_inner = v->c_row, .c_col = 1};                    \
        ps_window f = v->f;                                                                        \
        ps_acc acc[(rows_) * (vecs_)];                                                             \
        f.every = every_;                                                                          \
        ps_begin(acc, t, c, 0);                                                                    \
        for (int i = 0; i < v->calls; ++i)                                                         \
            ps_run_window(acc, t, f, a + i * v->a_step, b + i * v->columns, v->columns, v->left,   \
                          v->right);                                                               \
        ps_end_channel(acc, t, c, e);                                                              \
    }
KERNELS
#undef CASES

typedef struct {
    const char *name;
    kernel *run;
    int rows, vecs, every;
} entry;

#define CASES(name, rows, vecs, diagonal, every) {#name, name, rows, vecs, every},
static const entry table[] = {KERNELS};

enum { OF_A, OF_B, OF_C, OF_BIAS, OF_RESIDUAL, OPERANDS };

static void fill(float *p, int64_t size)
{
    for (int64_t i = 0; i < size; ++i)
        p[i] = (float)(below(9) - 4);
}

static int least(int x, int y) { return x < y ? x : y; }

static test_case random_case(entry k, int lanes)
{
    test_case v = {.lanes = lanes, .calls = 1 + (int)below(3), .a_step = 1 + below(5)};
    ps_window *f = &v.f;
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    f->taps = 1 + (int)below(4), f->apart = 1 + (int)below(2), f->step = 1 + (int)below(2);
    f->every = k.every, f->across = 1 + (int)below(2);
    v.columns = 1 + (int)below(least(4, (PS_LANES * k.every - 1) / f->across + 1));
    const int tall = (k.rows - 1) * f->step + (f->taps - 1) * f->apart + 1;
    const int wide = (cols - 1) * k.every + (v.columns - 1) * f->across + 1;
    f->top = below(2) ? 0 : (int)below(tall);
    f->bottom = below(2) ? tall : f->top + 1 + (int)below(tall - f->top);
    v.left = below(2) ? 0 : (int)below(wide);
    v.right = below(2) ? wide : v.left + 1 + (int)below(wide - v.left);
    f->row = wide + below(9), f->b_row = v.calls * v.columns + below(3);
    v.c_row = cols + below(2) * below(9);
    return v;
}

/* The sum of products of one element of C. */
static double product(const test_case *v, int i, int j, const ps_a *a, const ps_b *b)
{
    const ps_window *f = &v->f;
    double sum = 0;
    for (int call = 0; call < v->calls; ++call)
        for (int s = 0; s < v->columns; ++s)
            for (int r = 0; r < f->taps; ++r) {
                const int y = i * f->step + r * f->apart, x = j * f->every + s * f->across;
                if (y >= f->top && y < f->bottom && x >= v->left && x < v->right)
                    sum += (double)a[y * f->row + x + call * v->a_step] *
                           (double)b[r * f->b_row + call * v->columns + s];
            }
    return sum;
}

static int failed(entry k, int lanes, const region *regions, char *message, size_t room)
{
    static const float clamps[][2] = {{-20, 31}, {0, INFINITY}};
    const test_case v = random_case(k, lanes);
    const ps_window *f = &v.f;
    const int cols = (k.vecs - 1) * PS_LANES + lanes;
    const uint32_t ends = (uint32_t)below(32);
    const int64_t low = f->top * f->row + v.left;
    const int64_t a_size = (f->bottom - 1) * f->row + (v.calls - 1) * v.a_step + v.right - low;
    const int64_t b_size = (f->taps - 1) * f->b_row + v.calls * v.columns;
    const int64_t c_size = (k.rows - 1) * v.c_row + cols;
    int64_t slack, idle;
    ps_a *a = placed(regions[OF_A], a_size, sizeof *a, ends & 1, &idle);
    ps_b *b = placed(regions[OF_B], b_size, sizeof *b, ends & 2, &idle);
    ps_y *c = placed(regions[OF_C], c_size, sizeof *c, ends & 4, &slack);
    ps_bias *bias = placed(regions[OF_BIAS], 1, sizeof *bias, ends & 8, &idle);
    ps_y *residual = placed(regions[OF_RESIDUAL], c_size, sizeof *c, ends & 16, &idle);
    fill(a, a_size), fill(b, b_size), fill(bias, 1), fill(residual, c_size);
    const ps_epilogue e = {.bias = below(2) ? bias : 0, .residual = below(2) ? residual : 0,
                           .clamp = below(2) ? clamps[below(2)] : 0, .alpha = 1, .beta = 1};
    ps_y *around = ends & 4 ? c - slack : c, *want = malloc((size_t)(c_size + slack) * sizeof *c);
    const int64_t shift = c - around;
    untouched(around, (c_size + slack) * (int64_t)sizeof *c);
    memcpy(want, around, (size_t)(c_size + slack) * sizeof *c);
    for (int i = 0; i < k.rows; ++i)
        for (int j = 0; j < cols; ++j) {
            const int64_t at = i * v.c_row + j;
            double sum = product(&v, i, j, a - low, b) + (e.bias ? (double)*bias : 0);
            sum += e.residual ? (double)residual[at] : 0;
            want[shift + at] = (float)(e.clamp ? between(sum, e.clamp[0], e.clamp[1]) : sum);
        }
    k.run(&v, a - low, b, c, &e);
    int wrong = 0;
    for (int64_t at = 0; at < c_size + slack && !wrong; ++at) {
        wrong = memcmp(&around[at], &want[at], sizeof *c) && !(around[at] == want[at]);
        if (wrong)
            snprintf(message, room,
                     "%s lanes=%d columns=%d elements=%d..%d rows=%d..%d taps=%d apart=%d step=%d "
                     "across=%d: C at %d: expected %g, got %g", k.name, lanes, v.columns, v.left,
                     v.right, f->top, f->bottom, f->taps, f->apart, f->step, f->across,
                     (int)(at - shift), (double)want[at], (double)around[at]);
    }
    free(want), freed(a), freed(b), freed(c), freed(bias), freed(residual);
    return wrong;
}

int kernels(void);
const char *name_of(int index);
int check(int index, int times, const region *regions, char *message, size_t room);

int kernels(void) { return (int)(sizeof table / sizeof *table); }
const char *name_of(int index) { return table[index].name; }

/* 0 if every case of a kernel is right, else 1 and what differed. */
int check(int index, int times, const region *regions, char *message, size_t room)
{
    state = 1;
    for (int lanes = 1; lanes <= PS_LANES; ++lanes)
        for (int time = 0; time < 8 * times; ++time)
            if (failed(table[index], lanes, regions, message, room))
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
