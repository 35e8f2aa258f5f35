/* What a unit exports: its kernels by name, and the checks of each. */

#if !WHOLE
/* One times a number that is not ordinary, then perhaps a clamp: it comes out as it went in.  The
 * rest of its group is 0. */
static int bent(entry k, double number, int clamped, char *message, size_t room)
{
    static const float clamp[2] = {-20, 31};
    const int cols = k.vecs * PS_LANES, group = k.shifts * k.together;
    const test_case v = {.lanes = PS_LANES, .wrap = k.rows, .runs = 1, .width = 1, .rows = {~0u},
                         .length = {1}, .a_inner = cols, .c_inner = cols, .c_col = 1};
    ps_a *a = malloc((size_t)(k.rows * cols) * sizeof *a);
    ps_y *c = malloc((size_t)(k.rows * cols) * sizeof *c);
    ps_b *b = malloc((size_t)(cols * k.shifts * PS_WORD) * sizeof *b);
    const ps_epilogue e = {.clamp = clamped ? clamp : 0, .alpha = 1, .beta = 1};
    for (int i = 0; i < k.rows * cols; ++i)
        a[i] = NEAREST_A(i % group ? 0 : number);
    for (int j = 0; j < cols * k.shifts * PS_WORD; ++j)
        b[j] = NEAREST_B(j % PS_WORD == 0 && j < cols * PS_WORD);
    const double read = VALUE_A(*a), flushed = FLUSHES && fabs(read) < 0x1p-126 ? 0 : read;
    const double want = VALUE_Y(NEAREST_Y(clamped ? between(flushed, clamp[0], clamp[1]) : flushed));
    k.run(&v, a, b, c, &e);
    int wrong = 0;
    for (int i = 0; i < k.rows * cols && !wrong; i += group) {
        const double got = VALUE_Y(c[i]);
        wrong = !(got == want || (isnan(got) && isnan(want)));
        if (wrong)
            snprintf(message, room, "%s: 1 * %g clamped=%d: expected %g, got %g", k.name, read,
                     clamped, want, got);
    }
    free(a), free(b), free(c);
    return wrong;
}

static int bends(entry k, char *message, size_t room)
{
    static const double numbers[] = {
        INFINITY, -INFINITY, NAN, 0x1p-149, -0x1.8p-140, 0x1p-133, 0x1p-24, -0x1.8p-16, 0x1p-126,
        0x1.fffffep127, -0x1.fep127, 65504, 65519, 65520, 0x1.01p0, 0x1.03p0, 0x1.018p0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        for (int clamped = 0; clamped < 2; ++clamped)
            if (bent(k, numbers[i], clamped, message, room))
                return 1;
    return 0;
}
#else
static int bends(entry k, char *message, size_t room) { return (void)k, (void)message, (void)room, 0; }
#endif

int kernels(void);
const char *name_of(int index);
int check(int index, int times, const region *regions, char *message, size_t room);

int kernels(void) { return (int)(sizeof table / sizeof *table); }
const char *name_of(int index) { return table[index].name; }

/* Lanes that hold whole groups where lanes of A hold words: no weights of others meet these. */
static int in_groups(entry k, int lanes)
{
    const int group = k.together > 1 ? k.shifts * k.together : 1;
    return (lanes + group - 1) / group * group;
}

/* 0 if every case of a kernel is right, else 1 and what differed. */
int check(int index, int times, const region *regions, char *message, size_t room)
{
    state = 1;
    for (int lanes = 1; lanes <= PS_LANES; ++lanes)
        for (int runs = 1; runs <= RUNS; ++runs)
            for (int time = 0; time < times; ++time)
                if (failed(table[index], in_groups(table[index], lanes), runs, regions, message, room))
                    return 1;
    return bends(table[index], message, room);
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
#ifdef PACKING
    if (check_packing(400, none, message, sizeof message)) {
        puts(message);
        return 1;
    }
#endif
#ifdef SLIDING
    if (check_sliding(400, none, message, sizeof message)) {
        puts(message);
        return 1;
    }
#endif
    return 0;
}
#endif
