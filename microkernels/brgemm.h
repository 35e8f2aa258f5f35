/* The batch-reduce GEMM microkernel, written once over the vector primitives of an isa_*.h file.
 *
 *   C[i][j] = beta * C[i][j] + sum over runs, sum_{k < K} A[row(i) + k * a_k] * B[k * columns + j]
 *
 * A caller composes it from three inlined steps that share one array of accumulators: ps_begin
 * (beta), any number of ps_run (one evenly spaced part of the batch each), ps_end (epilogue and
 * store).  Every field of ps_tile is a compile-time constant there, so all loops over rows and
 * vectors unroll and the accumulators live in registers. */

/* Integers, for any caller. */
#define PS_SCALAR static inline __attribute__((unused))
PS_SCALAR int64_t ps_least(int64_t x, int64_t y) { return x < y ? x : y; }
PS_SCALAR int64_t ps_most(int64_t x, int64_t y) { return x > y ? x : y; }
PS_SCALAR int64_t ps_floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && x < 0); }
/* ceil(x / y) for y > 0, and 0 for negative x. */
PS_SCALAR int64_t ps_ceil_div(int64_t x, int64_t y) { return x > 0 ? (x + y - 1) / y : 0; }

/* A register tile of rows x vecs vectors.  Row i of A starts at (i / wrap) * a_outer +
 * (i % wrap) * a_inner, and likewise for C: rows may come from several image rows. */
typedef struct {
    int rows, vecs, wrap;
    int lanes;    /* used lanes of the last vector, 1..PS_LANES */
    int diagonal; /* A is a vector along the columns (depthwise), not a scalar */
    int stream;   /* C goes past the caches where it is aligned */
    int64_t a_outer, a_inner;
    int64_t c_outer, c_inner, c_col;
} ps_tile;

/* The operands of a primitive; bias, residual and clamp ({lowest, highest}) may be null. */
typedef struct {
    const float *x, *packed;
    float *y;
    const float *bias, *residual, *clamp;
    int aligned; /* y starts on a vector */
} ps_args;

/* What is applied to C on the last reduction step: bias by column, residual shaped like C. */
typedef struct {
    const float *bias, *residual, *clamp;
    int aligned;
} ps_epilogue;

PS_INLINE ps_epilogue ps_shifted(const ps_args *g, int64_t n, int64_t c)
{
    ps_epilogue e = {g->bias ? g->bias + n : 0, g->residual ? g->residual + c : 0, g->clamp,
                     g->aligned};
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

PS_INLINE int ps_whole(ps_tile t, int v) { return v + 1 < t.vecs || t.lanes == PS_LANES; }

PS_INLINE ps_vec ps_load_part(ps_tile t, const float *p, int v)
{
    const float *q = p + v * PS_LANES;
    return ps_whole(t, v) ? ps_load(q) : ps_load_first(q, t.lanes);
}

PS_INLINE void ps_store_part(ps_tile t, float *p, int v, ps_vec x)
{
    float *q = p + v * PS_LANES;
    if (ps_whole(t, v))
        ps_store(q, x);
    else
        ps_store_first(q, x, t.lanes);
}

/* Whether the rows of C are neighbours, so that a transposed tile is stored by whole vectors. */
PS_INLINE int ps_rows_touch(ps_tile t)
{
    return t.c_inner == 1 && (t.rows <= t.wrap || t.c_outer == t.wrap);
}

/* Where columns of C lie c_col apart: up to PS_LANES rows of vector v, from row `first`, read
 * through a transpose.  x[i] is row first + i. */
PS_INLINE void ps_gather(ps_vec *x, ps_tile t, const float *c, int first, int v)
{
    const int rows = t.rows - first < PS_LANES ? t.rows - first : PS_LANES;
    const int lanes = ps_whole(t, v) ? PS_LANES : t.lanes;
    if (ps_rows_touch(t)) {
        PS_UNROLL
        for (int j = 0; j < PS_LANES; ++j)
            x[j] = j < lanes ? ps_load_first(c + (v * PS_LANES + j) * t.c_col + first, rows)
                             : ps_zero();
        ps_transpose(x);
        return;
    }
    PS_UNROLL
    for (int i = 0; i < rows; ++i) {
        float part[PS_LANES] = {0};
        for (int j = 0; j < lanes; ++j)
            part[j] = c[(v * PS_LANES + j) * t.c_col + ps_c_row(t, first + i)];
        x[i] = ps_load(part);
    }
}

/* The reverse; x is used up. */
PS_INLINE void ps_scatter(ps_vec *x, ps_tile t, float *c, int first, int v)
{
    const int rows = t.rows - first < PS_LANES ? t.rows - first : PS_LANES;
    const int lanes = ps_whole(t, v) ? PS_LANES : t.lanes;
    if (ps_rows_touch(t)) {
        ps_transpose(x);
        PS_UNROLL
        for (int j = 0; j < PS_LANES; ++j) {
            float *p = c + (v * PS_LANES + j) * t.c_col + first;
            if (j < lanes && rows == PS_LANES)
                ps_store(p, x[j]);
            else if (j < lanes)
                ps_store_first(p, x[j], rows);
        }
        return;
    }
    PS_UNROLL
    for (int i = 0; i < rows; ++i) {
        float part[PS_LANES];
        ps_store(part, x[i]);
        for (int j = 0; j < lanes; ++j)
            c[(v * PS_LANES + j) * t.c_col + ps_c_row(t, first + i)] = part[j];
    }
}

/* acc += a tile of memory shaped like C. */
PS_INLINE void ps_accumulate(ps_vec *acc, ps_tile t, const float *c)
{
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        if (t.c_col == 1) {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                acc[i * t.vecs + v] =
                    ps_add(acc[i * t.vecs + v], ps_load_part(t, c + ps_c_row(t, i), v));
            continue;
        }
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            ps_vec x[PS_LANES];
            ps_gather(x, t, c, first, v);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (first + i < t.rows)
                    acc[(first + i) * t.vecs + v] = ps_add(acc[(first + i) * t.vecs + v], x[i]);
        }
    }
}

PS_INLINE void ps_put(ps_vec *acc, ps_tile t, float *c, int stream)
{
    if (stream) {
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                ps_stream(c + ps_c_row(t, i) + v * PS_LANES, acc[i * t.vecs + v]);
        }
        return;
    }
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v) {
        if (t.c_col == 1) {
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                ps_store_part(t, c + ps_c_row(t, i), v, acc[i * t.vecs + v]);
            continue;
        }
        PS_UNROLL
        for (int first = 0; first < t.rows; first += PS_LANES) {
            ps_vec x[PS_LANES];
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                x[i] = first + i < t.rows ? acc[(first + i) * t.vecs + v] : ps_zero();
            ps_scatter(x, t, c, first, v);
        }
    }
}

PS_INLINE void ps_begin(ps_vec *acc, ps_tile t, const float *c, int accumulate)
{
    PS_UNROLL
    for (int i = 0; i < t.rows * t.vecs; ++i)
        acc[i] = ps_zero();
    if (accumulate)
        ps_accumulate(acc, t, c);
}

/* acc += A * B over `length` steps, A moving by a_k and B by one row of the panel.  Only rows whose
 * bit is set take part: the others lie in the padding, where A is zero. */
PS_INLINE void ps_run(ps_vec *acc, ps_tile t, uint32_t rows, const float *restrict a,
                      const float *restrict b, int64_t length, int64_t a_k)
{
    for (int64_t k = 0; k < length; ++k, a += a_k, b += t.vecs * PS_LANES) {
        /* A step loads its own operands: rows that overlap by a few elements tempt compilers to
         * carry loads from step to step in registers that the accumulators need. */
        __asm__ volatile("" : : : "memory");
        ps_vec bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_load(b + v * PS_LANES);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            if (!(rows >> i & 1))
                continue;
            const float *restrict row = a + ps_a_row(t, i);
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v) {
                const ps_vec av = t.diagonal ? ps_load_part(t, row, v) : ps_splat(*row);
                acc[i * t.vecs + v] = ps_fma(av, bv[v], acc[i * t.vecs + v]);
            }
        }
    }
}

PS_INLINE void ps_end(ps_vec *acc, ps_tile t, float *c, const ps_epilogue *e)
{
    if (e && e->bias) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const ps_vec x = ps_load_part(t, e->bias, v);
            PS_UNROLL
            for (int i = 0; i < t.rows; ++i)
                acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], x);
        }
    }
    if (e && e->residual)
        ps_accumulate(acc, t, e->residual);
    if (e && e->clamp) {
        const ps_vec lowest = ps_splat(e->clamp[0]), highest = ps_splat(e->clamp[1]);
        PS_UNROLL
        for (int i = 0; i < t.rows * t.vecs; ++i) /* in this order a NaN stays one */
            acc[i] = ps_min(highest, ps_max(lowest, acc[i]));
    }
    ps_put(acc, t, c, t.stream && e && e->aligned);
}
