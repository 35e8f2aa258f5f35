/* The steps of brgemm.h by outer products.  Sums lie in memory, row by row, and are in za0 to za2
 * during a run alone: 16 rows of up to 48 columns.  A run is one piece of assembly, which begins
 * and ends streaming mode, so that no code of a compiler is inside. */

/* A run as its assembly sees it: `height` rows of sums, columns that end at lane `lanes` of their
 * predicates, and the bytes from one row of sums, or of B, to the next. */
typedef struct {
    ps_acc *sums;
    const ps_b *b;
    int64_t height, lanes, sums_row, b_row;
    const void *at[PS_SME_SIDE]; /* rows of A; of one that takes no part, another's */
    uint32_t real[PS_SME_SIDE];  /* all bits of those that take part */
} ps_outer;

/* What another function keeps in ZA, and would save lazily, is saved first, as the procedure call
 * standard asks (AAPCS64, lazy saving of ZA): TPIDR2_EL0 says where. */
PS_INLINE void ps_save_za(void)
{
    __asm__ volatile(".arch_extension sme\n"
                     "mrs x9, s3_3_c13_c0_5\n"
                     "cbz x9, 2f\n"
                     "ldr x10, [x9]\n"
                     "ldrh w11, [x9, #8]\n"
                     "cbz x10, 2f\n"
                     "cbz w11, 2f\n"
                     "mov w12, #0\n"
                     "1: str za[w12, 0], [x10]\n"
                     "addsvl x10, x10, #1\n"
                     "add w12, w12, #1\n"
                     "cmp w12, w11\n"
                     "b.lo 1b\n"
                     "msr s3_3_c13_c0_5, xzr\n"
                     "2:\n"
                     :
                     :
                     : "x9", "x10", "x11", "x12", "cc", "memory");
}

/* The assembly of a run: what each of 1, 2 or 3 registers of sums takes.  It is za0 to za2, the
 * predicate of its columns p1 to p3, vectors of B in odd and in even steps z1 to z3 and z5 to z7;
 * so many words, and lanes of a predicate, lie before its columns. */
#define PS_OUTER_1(each) each("0", "p1", "z1", "z5", "xzr", "xzr")
#define PS_OUTER_2(each) PS_OUTER_1(each) each("1", "p2", "z2", "z6", "x9", "x13")
#define PS_OUTER_3(each) PS_OUTER_2(each) each("2", "p3", "z3", "z7", "x10", "x14")

#define PS_OUTER_LIMIT(v, p, odd, even, words, lanes)                                              \
    "whilelt " p PS_OUTER_OF ", " lanes ", %[lanes]\n"
#define PS_OUTER_LOAD(v, p, odd, even, words, lanes)                                               \
    "ld1w {za" v "h.s[w12, 0]}, " p "/z, [x11, " words ", lsl #2]\n"
#define PS_OUTER_STORE(v, p, odd, even, words, lanes)                                              \
    "st1w {za" v "h.s[w12, 0]}, " p ", [x11, " words ", lsl #2]\n"
#define PS_OUTER_B_ODD(v, p, odd, even, words, lanes) PS_OUTER_B(odd, p, v)
#define PS_OUTER_B_EVEN(v, p, odd, even, words, lanes) PS_OUTER_B(even, p, v)
#define PS_OUTER_ADD_ODD(v, p, odd, even, words, lanes) PS_OUTER_ADD(v, p, "z0", odd)
#define PS_OUTER_ADD_EVEN(v, p, odd, even, words, lanes) PS_OUTER_ADD(v, p, "z4", even)

/* Rows of sums from or to memory. */
#define PS_OUTER_SUMS(of, move)                                                                    \
    "mov x11, %[sums]\n"                                                                           \
    "mov w12, #0\n"                                                                                \
    "1:\n"                                                                                         \
    of(move)                                                                                       \
    "add x11, x11, %[sums_row]\n"                                                                  \
    "add w12, w12, #1\n"                                                                           \
    "cmp w12, %w[height]\n"                                                                        \
    "b.lo 1b\n"

/* Beginning and end of streaming mode set all flags of exceptions: they stay what they were. */
#define PS_OUTER_BEGIN(of)                                                                         \
    ".arch_extension sme\n"                                                                        \
    "mrs x8, fpsr\n"                                                                               \
    "smstart\n"                                                                                    \
    "ptrue p0" PS_OUTER_OF "\n"                                                                    \
    "ld1w {z0.s}, p0/z, [%[real]]\n"                                                               \
    "cmpne p0" PS_OUTER_OF ", p0/z, z0" PS_OUTER_OF ", #0\n"                                       \
    PS_OUTER_COUNT " x13\n"                                                                        \
    "add x14, x13, x13\n"                                                                          \
    of(PS_OUTER_LIMIT)                                                                             \
    "cntw x9\n"                                                                                    \
    "add x10, x9, x9\n"                                                                            \
    PS_OUTER_SUMS(of, PS_OUTER_LOAD)
#define PS_OUTER_END(of) PS_OUTER_SUMS(of, PS_OUTER_STORE) "smstop\nmsr fpsr, x8\n"

/* A step: a column of A by a row of B. */
#define PS_OUTER_STEP(of, load, add, a)                                                            \
    a                                                                                              \
    of(load)                                                                                       \
    "add %[b], %[b], %[b_row]\n"                                                                   \
    of(add)

#define PS_OUTER_ODD(of, a) PS_OUTER_STEP(of, PS_OUTER_B_ODD, PS_OUTER_ADD_ODD, a)
#define PS_OUTER_EVEN(of, a) PS_OUTER_STEP(of, PS_OUTER_B_EVEN, PS_OUTER_ADD_EVEN, a)

/* x15 steps, 4 a turn; `next` is what a turn of so many ends with. */
#define PS_OUTER_STEPS(of, a, next)                                                                \
    "3: subs x15, x15, #4\n"                                                                       \
    "b.lt 4f\n"                                                                                    \
    PS_OUTER_ODD(of, a("z0", "0"))                                                                 \
    PS_OUTER_EVEN(of, a("z4", "1"))                                                                \
    PS_OUTER_ODD(of, a("z0", "2"))                                                                 \
    PS_OUTER_EVEN(of, a("z4", "3"))                                                                \
    next("4")                                                                                      \
    "b 3b\n"                                                                                       \
    "4: adds x15, x15, #4\n"                                                                       \
    "b.eq 6f\n"                                                                                    \
    "5:\n"                                                                                         \
    PS_OUTER_ODD(of, a("z0", "0"))                                                                 \
    next("1")                                                                                      \
    "subs x15, x15, #1\n"                                                                          \
    "b.ne 5b\n"                                                                                    \
    "6:\n"

/* A by columns: memory that holds the words of its rows side by side. */
#define PS_OUTER_COLUMN(to, i) "ld1w {" to ".s}, p0/z, [%[a]]\nadd %[a], %[a], %[a_k]\n"
#define PS_OUTER_NO(i)
#define PS_OUTER_COLUMNS(of) "mov x15, %[length]\n" PS_OUTER_STEPS(of, PS_OUTER_COLUMN, PS_OUTER_NO)

/* A by rows: 16 words of each are loaded into the rows of za3, whose columns are read. */
#define PS_OUTER_TURNED(to, i) "mova " to ".s, p0/m, za3v.s[w12, " i "]\n"
#define PS_OUTER_NEXT(i) "add w12, w12, #" i "\n"
#define PS_OUTER_ROW(x, i) "ld1w {za3h.s[w12, " i "]}, p4/z, [" x ", x13, lsl #2]\n"
#define PS_OUTER_ROWS(of)                                                                          \
    "mov x13, #0\n"                                                                                \
    "1: whilelt p4.s, x13, %[length]\n"                                                            \
    "mov x14, %[at]\n"                                                                             \
    "mov w12, #0\n"                                                                                \
    "2: ldp x11, x15, [x14], #16\n"                                                                \
    "ldp x16, x17, [x14], #16\n"                                                                   \
    PS_OUTER_ROW("x11", "0")                                                                       \
    PS_OUTER_ROW("x15", "1")                                                                       \
    PS_OUTER_ROW("x16", "2")                                                                       \
    PS_OUTER_ROW("x17", "3")                                                                       \
    "add w12, w12, #4\n"                                                                           \
    "cmp w12, %w[height]\n"                                                                        \
    "b.lo 2b\n"                                                                                    \
    "sub x15, %[length], x13\n"                                                                    \
    "cmp x15, x9\n"                                                                                \
    "csel x15, x15, x9, lt\n"                                                                      \
    "mov w12, #0\n"                                                                                \
    PS_OUTER_STEPS(of, PS_OUTER_TURNED, PS_OUTER_NEXT)                                             \
    "add x13, x13, x9\n"                                                                           \
    "cmp x13, %[length]\n"                                                                         \
    "b.lt 1b\n"

/* All vectors and predicates are lost where streaming mode begins or ends. */
#define PS_OUTER_LOST                                                                              \
    "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "v0", "v1", "v2", "v3",    \
    "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",    \
    "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",     \
    "v31", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12",        \
    "p13", "p14", "p15", "cc", "memory"
#define PS_OUTER_OPERANDS(r)                                                                       \
    [sums] "r"((r)->sums), [real] "r"((r)->real), [height] "r"((r)->height),                       \
        [lanes] "r"((r)->lanes), [sums_row] "r"((r)->sums_row), [b_row] "r"((r)->b_row)
#define PS_OUTER_BY_ROWS(of, r, b, length)                                                         \
    __asm__ volatile(PS_OUTER_BEGIN(of) PS_OUTER_ROWS(of) PS_OUTER_END(of)                         \
                     : [b] "+r"(b)                                                                 \
                     : PS_OUTER_OPERANDS(r), [length] "r"(length), [at] "r"((r)->at)               \
                     : PS_OUTER_LOST)
#define PS_OUTER_BY_COLUMNS(of, r, b, length, a, a_k)                                              \
    __asm__ volatile(PS_OUTER_BEGIN(of) PS_OUTER_COLUMNS(of) PS_OUTER_END(of)                      \
                     : [b] "+r"(b), [a] "+r"(a)                                                    \
                     : PS_OUTER_OPERANDS(r), [length] "r"(length), [a_k] "r"(a_k)                  \
                     : PS_OUTER_LOST)

/* One of each for all register tiles of a file. */
static PS_KERNEL __attribute__((unused)) void ps_outer_rows_1(const ps_outer *r, int64_t length)
{
    const ps_b *b = r->b;
    PS_OUTER_BY_ROWS(PS_OUTER_1, r, b, length);
}
static PS_KERNEL __attribute__((unused)) void ps_outer_rows_2(const ps_outer *r, int64_t length)
{
    const ps_b *b = r->b;
    PS_OUTER_BY_ROWS(PS_OUTER_2, r, b, length);
}
static PS_KERNEL __attribute__((unused)) void ps_outer_rows_3(const ps_outer *r, int64_t length)
{
    const ps_b *b = r->b;
    PS_OUTER_BY_ROWS(PS_OUTER_3, r, b, length);
}
static PS_KERNEL __attribute__((unused)) void
ps_outer_columns_1(const ps_outer *r, int64_t length, const void *a, int64_t a_k)
{
    const ps_b *b = r->b;
    PS_OUTER_BY_COLUMNS(PS_OUTER_1, r, b, length, a, a_k);
}
static PS_KERNEL __attribute__((unused)) void
ps_outer_columns_2(const ps_outer *r, int64_t length, const void *a, int64_t a_k)
{
    const ps_b *b = r->b;
    PS_OUTER_BY_COLUMNS(PS_OUTER_2, r, b, length, a, a_k);
}
static PS_KERNEL __attribute__((unused)) void
ps_outer_columns_3(const ps_outer *r, int64_t length, const void *a, int64_t a_k)
{
    const ps_b *b = r->b;
    PS_OUTER_BY_COLUMNS(PS_OUTER_3, r, b, length, a, a_k);
}

/* `length` steps, A by rows from r->at on. */
PS_INLINE void ps_outer_rows(const ps_outer *r, int n, int64_t length)
{
    ps_save_za();
    if (n == 1)
        ps_outer_rows_1(r, length);
    else if (n == 2)
        ps_outer_rows_2(r, length);
    else
        ps_outer_rows_3(r, length);
}

/* `length` steps, A by columns `a_k` bytes apart. */
PS_INLINE void ps_outer_columns(const ps_outer *r, int n, int64_t length, const void *a,
                                int64_t a_k)
{
    ps_save_za();
    if (n == 1)
        ps_outer_columns_1(r, length, a, a_k);
    else if (n == 2)
        ps_outer_columns_2(r, length, a, a_k);
    else
        ps_outer_columns_3(r, length, a, a_k);
}

/* Steps whose words lie elsewhere, or are no words yet: they are copied, 64 columns at a time. */
PS_INLINE void ps_outer_copied(ps_outer *r, int n, ps_tile t, uint32_t rows, const ps_a *a,
                               int64_t length, int64_t a_k, int width)
{
    enum { DEPTH = 64 };
    _Alignas(64) uint32_t copy[DEPTH][PS_SME_SIDE];
    for (int64_t steps; length > 0; length -= steps, a += steps * a_k) {
        steps = ps_least(length, DEPTH);
        for (int i = 0; i < t.rows; ++i)
            for (int64_t k = 0; k < steps && rows >> i & 1; ++k) {
                const ps_a *from = a + ps_a_row(t, i) + k * a_k;
                const ps_wide word = width == PS_WORD ? ps_word(from) : ps_word_first(from, width);
                __builtin_memcpy(&copy[k][i], &word, sizeof copy[k][i]);
            }
        ps_outer_columns(r, n, steps, copy, sizeof copy[0]);
        r->b += steps * (r->b_row / (int64_t)sizeof(ps_b));
    }
}

PS_INLINE void ps_outer_run_part(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                                 const ps_b *restrict b, int64_t length, int64_t a_k, int width)
{
    const int64_t columns = t.vecs * PS_LANES;
    const int n = (int)(columns + PS_SME_SIDE - 1) / PS_SME_SIDE;
    const int words = sizeof(ps_a) * PS_WORD == sizeof(uint32_t) && width == PS_WORD;
    const int beside = t.a_inner == PS_WORD && (t.rows <= t.wrap || t.a_outer == t.wrap * PS_WORD);
    const uint32_t real = rows & ((1u << t.rows) - 1);
    if (!real || length <= 0)
        return;
    _Alignas(64) ps_outer r = {.sums = acc, .b = b, .height = t.rows, .lanes = columns * PS_WORD,
                               .sums_row = columns * (int64_t)sizeof(float),
                               .b_row = columns * PS_WORD * (int64_t)sizeof(ps_b)};
    for (int i = 0; i < PS_SME_SIDE; ++i) {
        r.real[i] = real >> i & 1 ? ~(uint32_t)0 : 0;
        r.at[i] = a + ps_a_row(t, real >> i & 1 ? i : __builtin_ctz(real));
    }
    if (words && a_k == PS_WORD)
        ps_outer_rows(&r, n, length);
    else if (words && beside)
        ps_outer_columns(&r, n, length, a, a_k * (int64_t)sizeof(ps_a));
    else
        ps_outer_copied(&r, n, t, real, a, length, a_k, width);
}

PS_INLINE void ps_outer_run(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                            const ps_b *restrict b, int64_t length, int64_t a_k)
{
    ps_outer_run_part(acc, t, rows, a, b, length, a_k, PS_WORD);
}

PS_INLINE void ps_outer_begin(ps_acc *acc, ps_tile t, const ps_y *c, int accumulate)
{
    for (int i = 0; i < t.rows; ++i)
        ps_begin(acc + i * t.vecs, ps_one_row(t), c + ps_c_row(t, i), accumulate);
}

PS_INLINE void ps_outer_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    ps_end_parts(acc, t.wrap, t, c, e);
}

/* What follows is written against these names. */
#define ps_begin ps_outer_begin
#define ps_run ps_outer_run
#define ps_run_part ps_outer_run_part
#define ps_end ps_outer_end
