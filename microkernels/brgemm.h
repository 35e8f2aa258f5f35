/* The batch-reduce GEMM microkernel, written once over the primitives of the headers before it.
 *
 *   C[i][j] = beta * C[i][j] + sum over runs, sum_{k < K} A[row(i) + k * a_k] * B[k * columns + j]
 *
 * A caller composes it from three inlined steps that share one array of accumulators: ps_begin
 * (beta), any number of ps_run (one evenly spaced part of the batch each), ps_end (epilogue and
 * store).  Every field of ps_tile is a compile-time constant there, so all loops over rows and
 * vectors unroll and the accumulators live in registers. */

/* A register tile of rows x vecs vectors.  Row i of A starts at (i / wrap) * a_outer +
 * (i % wrap) * a_inner, and likewise for C: rows may come from several image rows.  Fields stand in
 * the order in which generated code sets them, as C++ demands. */
typedef struct {
    int rows, vecs, wrap;
    int lanes; /* used lanes of the last vector, 1..PS_LANES */
    int64_t a_outer, a_inner;
    int64_t c_outer, c_inner, c_col;
    int diagonal; /* A is a vector along the columns (depthwise), not a scalar */
    int shifts;   /* accumulators of each element of C: see grouped.h; 0 is one */
    int together; /* channels in a lane of A, of grouped tiles: see grouped.h; 0 is one */
    int block;    /* numbers of k in a step whose B has a scale: see blocks.h */
    int begun;    /* the accumulators began with offset and bias: see ps_begin_offset */
    int words;    /* of k in a step on tile registers, 1..16; 0 is 16 */
    int soon;     /* the step so many behind this one finds its A in L1; 0: no prefetch */
    int ahead;    /* lines that a step prefetches, `next` bytes behind its row of B; next may vary */
    int64_t next;
    int stream; /* C goes past the caches where it is aligned */
} ps_tile;

/* How whole sums become 8-bit results:
 * y = saturate(round(clamp(sum * scale[n] + (residual - residual_zero) * residual_scale)) + y_zero)
 * where sum holds the bias. */
#ifndef PS_SCALES
#define PS_SCALES
typedef struct {
    const float *scale; /* one a channel */
    float residual_scale;
    int32_t residual_zero, y_zero;
} polysci_scales;
#endif

/* The operands of a primitive; bias, residual and clamp ({lowest, highest}) may be null. */
typedef struct {
    const void *a; /* x, or its packed copy */
    const ps_b *packed;
    ps_y *y;
    const ps_bias *bias;
    const ps_y *residual;
    const float *clamp;
    int aligned; /* y starts on a vector */
    int *tiles;  /* the shapes of tile registers that this thread has configured, if any */
    /* Of whole numbers: what x holds for 0, by channel what that adds to the sums, negated, and
     * how sums become results. */
    int32_t x_zero;
    const int32_t *offset;
    const polysci_scales *to;
} ps_args;

/* A function of each of `vecs` vectors of finished sums; null: none. */
typedef void (*ps_activation)(float *x, int64_t vecs);

/* What is applied to C on the last reduction step: by column, or shaped like C; alpha is a factor
 * of the sums, beta of the residual. */
typedef struct {
    const ps_bias *bias;
    const ps_y *residual;
    const float *clamp;
    int aligned;
    const int32_t *offset;
    const float *scale;
    const polysci_scales *to;
    ps_activation activation;
    float alpha, beta;
} ps_epilogue;

PS_INLINE ps_epilogue ps_shifted(const ps_args *g, int64_t n, int64_t c)
{
    ps_epilogue e = {g->bias ? g->bias + n : 0, g->residual ? g->residual + c : 0, g->clamp,
                     g->aligned, g->offset ? g->offset + n : 0, g->to ? g->to->scale + n : 0,
                     g->to, 0, 1.0f, 1.0f};
    return e;
}

/* Its offsets those of a batch, `batch` elements behind the first one's. */
PS_INLINE ps_epilogue ps_in_batch(ps_epilogue e, int64_t batch)
{
    e.offset += batch;
    return e;
}

PS_INLINE ps_epilogue ps_times(ps_epilogue e, float alpha, float beta)
{
    e.alpha = alpha;
    e.beta = beta;
    return e;
}

PS_INLINE ps_epilogue ps_then(ps_epilogue e, ps_activation activation)
{
    e.activation = activation;
    return e;
}

PS_INLINE int64_t ps_a_row(ps_tile t, int i)
{
    return (i / t.wrap) * t.a_outer + (i % t.wrap) * t.a_inner;
}

PS_INLINE int64_t ps_c_row(ps_tile t, int i)
{
    return (i / t.wrap) * t.c_outer + (i % t.wrap) * t.c_inner;
}

/* Used lanes of vector v. */
PS_INLINE int ps_used(ps_tile t, int v) { return v + 1 < t.vecs ? PS_LANES : t.lanes; }

/* Channels in a lane of A. */
PS_INLINE int ps_in_lane(ps_tile t) { return t.together > 1 ? t.together : 1; }

/* Vectors of sums of a row: one for each column of a word. */
PS_INLINE int ps_sum_vecs(ps_tile t)
{
    return (t.vecs + ps_in_lane(t) - 1) / ps_in_lane(t) * ps_in_lane(t);
}

/* Whether A's vector v comes with its neighbour, as even and odd elements: accumulators and panels
 * then hold columns in this order. */
PS_INLINE int ps_paired(ps_tile t, int v) { return PS_PAIRS && t.diagonal && (v | 1) < t.vecs; }

/* The column at place j of a panel of `width` columns in that order. */
PS_SCALAR int64_t ps_column_at(int64_t j, int64_t width)
{
    const int64_t first = j / (2 * PS_LANES) * (2 * PS_LANES), at = j - first;
    const int paired = PS_PAIRS && first + 2 * PS_LANES <= width;
    return paired ? first + at % PS_LANES * 2 + at / PS_LANES : j;
}

/* Whether the rows of C are neighbours, so that a transposed tile is stored by whole vectors. */
PS_INLINE int ps_rows_touch(ps_tile t)
{
    return t.c_inner == 1 && (t.rows <= t.wrap || t.c_outer == t.wrap);
}

/* Where columns of C lie c_col apart: up to PS_LANES rows of vector v, from row `first`, read
 * through a transpose.  x[i] is row first + i, as the bits of a vector of y. */
PS_INLINE void ps_gather(ps_vec *x, ps_tile t, const ps_y *c, int first, int v)
{
    const int rows = t.rows - first < PS_LANES ? t.rows - first : PS_LANES;
    const int lanes = ps_used(t, v);
    if (ps_rows_touch(t)) {
        PS_UNROLL
        for (int j = 0; j < PS_LANES; ++j)
            x[j] = j < lanes ? ps_y_load(c + (v * PS_LANES + j) * t.c_col + first, rows)
                             : ps_zero();
        ps_transpose(x);
        return;
    }
    PS_UNROLL
    for (int i = 0; i < rows; ++i) {
        _Alignas(64) ps_y part[PS_LANES] = {0};
        for (int j = 0; j < lanes; ++j)
            part[j] = c[(v * PS_LANES + j) * t.c_col + ps_c_row(t, first + i)];
        x[i] = ps_y_load(part, PS_LANES);
    }
}

/* The reverse; x is used up. */
PS_INLINE void ps_scatter(ps_vec *x, ps_tile t, ps_y *c, int first, int v)
{
    const int rows = t.rows - first < PS_LANES ? t.rows - first : PS_LANES;
    const int lanes = ps_used(t, v);
    if (ps_rows_touch(t)) {
        ps_transpose(x);
        PS_UNROLL
        for (int j = 0; j < PS_LANES; ++j)
            if (j < lanes)
                ps_y_store(c + (v * PS_LANES + j) * t.c_col + first, x[j], rows);
        return;
    }
    PS_UNROLL
    for (int i = 0; i < rows; ++i) {
        _Alignas(64) ps_y part[PS_LANES];
        ps_y_store(part, x[i], PS_LANES);
        for (int j = 0; j < lanes; ++j)
            c[(v * PS_LANES + j) * t.c_col + ps_c_row(t, first + i)] = part[j];
    }
}

/* The bits of vector v of a row in memory shaped like C, where columns are neighbours. */
PS_INLINE ps_vec ps_fetch(ps_tile t, const ps_y *c, int row, int v)
{
    return ps_y_load(c + ps_c_row(t, row) + v * PS_LANES, ps_used(t, v));
}

/* acc += a tile of memory shaped like C, which holds sums. */
PS_INLINE void ps_accumulate(ps_acc *acc, ps_tile t, const ps_y *c)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        if (t.c_col == 1) {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i) {
                ps_acc *sum = &acc[i * t.vecs + v];
                *sum = ps_acc_add(*sum, ps_acc_of(ps_fetch(t, c, i, v)));
            }
            continue;
        }
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            _Alignas(64) ps_vec x[PS_LANES];
            ps_gather(x, t, c, first, v);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (first + i < t.rows) {
                    ps_acc *sum = &acc[(first + i) * t.vecs + v];
                    *sum = ps_acc_add(*sum, ps_acc_of(x[i]));
                }
        }
    }
}

/* Between the sums and their epilogue: what that needs must not cost registers before. */
PS_INLINE void ps_settle(ps_acc *acc, ps_tile t)
{
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i)
        PS_SETTLE(acc[i]);
}

/* How many vectors of a row are stored at once with vector v: 2 whole ones, or it alone. */
PS_INLINE int ps_together(ps_tile t, int v)
{
    const int whole = t.lanes == PS_LANES ? t.vecs : t.vecs - 1;
    return PS_Y_WIDE == 2 && v / 2 * 2 + 2 <= whole ? 2 : 1;
}

PS_INLINE void ps_put_row(ps_acc *acc, ps_tile t, ps_y *c, int v, int count)
{
    _Alignas(64) ps_vec x[2];
    PS_UNROLL
    for (int i = 0; i < count; ++i)
        x[i] = ps_acc_bits(acc[i]);
    if (count > 1)
        ps_y_store_wide(c, x, count);
    else
        ps_y_store(c, x[0], ps_used(t, v));
}

/* Whether rows of C consist of what one streamed store takes, PS_Y_STREAM vectors. */
PS_INLINE int ps_in_lines(ps_tile t)
{
    enum { STEP = PS_Y_STREAM * PS_LANES };
    return t.vecs % PS_Y_STREAM == 0 && t.c_inner % STEP == 0 &&
           (t.rows <= t.wrap || t.c_outer % STEP == 0);
}

/* Store a tile whose accumulators hold results. */
PS_INLINE void ps_put(ps_acc *acc, ps_tile t, ps_y *c, int stream)
{
    if (stream && ps_in_lines(t)) {
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            PS_UNROLL
            for (int v = 0; v < t.vecs; v += PS_Y_STREAM) {
                _Alignas(64) ps_vec x[PS_Y_STREAM];
                PS_UNROLL
                for (int j = 0; j < PS_Y_STREAM; ++j)
                    x[j] = ps_acc_bits(acc[i * t.vecs + v + j]);
                ps_y_stream(c + ps_c_row(t, i) + v * PS_LANES, x);
            }
        }
        return;
    }
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        if (t.c_col == 1) {
            const int count = ps_together(t, v);
            if (v % count) /* stored with the one before */
                continue;
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                ps_put_row(acc + i * t.vecs + v, t, c + ps_c_row(t, i) + v * PS_LANES, v, count);
            continue;
        }
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            _Alignas(64) ps_vec x[PS_LANES];
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                x[i] = first + i < t.rows ? ps_acc_bits(acc[(first + i) * t.vecs + v]) : ps_zero();
            ps_scatter(x, t, c, first, v);
        }
    }
}

/* A tile of memory shaped like C, needed at the end, is asked for at the beginning. */
PS_INLINE void ps_ahead(ps_tile t, const ps_y *c)
{
    enum { LINE = 64 / sizeof(ps_y) };
    if (!c || t.c_col != 1)
        return;
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int j = 0; j < t.vecs * PS_LANES; j += LINE)
            __builtin_prefetch(c + ps_c_row(t, i) + j);
    }
}

PS_INLINE void ps_begin(ps_acc *acc, ps_tile t, const ps_y *c, int accumulate)
{
    const int count = t.rows * ps_sum_vecs(t) * (t.shifts ? t.shifts : 1);
    PS_UNROLL
    for (int i = 0; i < count; ++i)
        acc[i] = ps_acc_zero();
    if (accumulate)
        ps_accumulate(acc, t, c);
}

/* Columns of paired vectors back in order, once before ps_end. */
PS_INLINE void ps_unpair(ps_acc *acc, ps_tile t)
{
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; v += 2) {
            if (!ps_paired(t, v))
                continue;
            ps_acc *at = acc + i * t.vecs + v;
            ps_vec even = ps_acc_bits(at[0]), odd = ps_acc_bits(at[1]);
            ps_interleave_pair(&even, &odd);
            at[0] = ps_acc_of(even), at[1] = ps_acc_of(odd);
        }
    }
}

/* Whether row i begins a line of A, or an image row, or ends one: rows between lie in lines of these. */
PS_INLINE int ps_starts_line(ps_tile t, int i)
{
    const int every = t.a_inner < 64 / (int)sizeof(ps_a) ? 64 / (int)sizeof(ps_a) / (int)t.a_inner : 1;
    return i % t.wrap % every == 0 || i + 1 == t.rows || (i + 1) % t.wrap == 0;
}

/* The lines that the rows of a step read, into L1.  Where rows are neighbours and steps lie far
 * apart no prefetcher of the CPU asks for them, and all loads of a line that is on its way are
 * issued twice: with a load for every product that halves the speed. */
PS_INLINE void ps_soon(ps_tile t, const ps_a *a)
{
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i)
        if (ps_starts_line(t, i))
            __builtin_prefetch(a + ps_a_row(t, i));
}

/* acc += A * B over `length` steps of `width` elements, PS_WORD or fewer.  Rows whose bit is set
 * read A; the others lie in the padding and take no part, or read `filling` if it is not null. */
PS_INLINE void ps_steps(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                        const ps_a *restrict a, const ps_b *restrict b, int64_t length, int64_t a_k,
                        int width)
{
    for (int64_t k = 0; k < length; ++k, a += a_k, b += t.vecs * PS_LANES * PS_WORD) {
        /* A step loads its own operands: rows that overlap by a few elements tempt compilers to
         * carry loads from step to step in registers that the accumulators need. */
        PS_RELOAD();
        PS_UNROLL
        for (int line = 0; line < t.ahead; ++line) /* into L2: a prefetch never faults */
            __builtin_prefetch((const char *)b + t.next + 64 * line, 0, 2);
        if (t.soon)
            ps_soon(t, a + t.soon * a_k);
        _Alignas(64) ps_wide bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_panel(b + v * PS_LANES * PS_WORD);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const int real = rows >> i & 1;
            if (!real && !filling)
                continue;
            const ps_a *restrict row = a + ps_a_row(t, i);
            if (PS_HELD) /* one row's A in a register at a time */
                PS_RELOAD();
            _Alignas(64) ps_wide pair[2];
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v) {
                if (real && ps_paired(t, v) && v % 2 == 0)
                    ps_beside_pair(row + v * PS_LANES, PS_LANES + ps_used(t, v + 1), pair);
                const ps_wide av = !real              ? *filling
                                   : ps_paired(t, v)  ? pair[v % 2]
                                   : t.diagonal       ? ps_beside(row + v * PS_LANES, ps_used(t, v))
                                   : width == PS_WORD ? ps_word(row)
                                                      : ps_word_first(row, width);
                acc[i * t.vecs + v] = ps_dot(av, bv[v], acc[i * t.vecs + v]);
            }
        }
    }
}

/* acc += A * B over `length` steps of a whole word, A moving by a_k and B by one row of the panel.
 * Only rows whose bit is set take part: the others lie in the padding, where A is zero. */
PS_INLINE void ps_run(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                      const ps_b *restrict b, int64_t length, int64_t a_k)
{
    ps_steps(acc, t, rows, 0, a, b, length, a_k, PS_WORD);
}

/* The same where a step has only `width` < PS_WORD elements of A. */
PS_INLINE void ps_run_part(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                           const ps_b *restrict b, int64_t length, int64_t a_k, int width)
{
    ps_steps(acc, t, rows, 0, a, b, length, a_k, width);
}

/* The same where x holds `zero` in the padding, which then takes part. */
PS_INLINE void ps_run_filled(ps_acc *acc, ps_tile t, uint32_t rows, int32_t zero,
                             const ps_a *restrict a, const ps_b *restrict b, int64_t length,
                             int64_t a_k, int width)
{
    const ps_wide filling = ps_filling(zero);
    ps_steps(acc, t, rows, &filling, a, b, length, a_k, width);
}
