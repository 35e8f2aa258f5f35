/* Bilinear algorithms for products: C = A B of m x k by k x n blocks by r products of sums of blocks,
 *
 *   P[p] = (sum of u A[i]) (sum of v B[j]) and C[l] = sum of w P[p]
 *
 * around products of blocks (Huang, Smith, Henry and van de Geijn, Strassen's algorithm reloaded,
 * SC 2016).  Sums of A are formed of a band of rows of each of its blocks, those of B when B is
 * packed.  What blocks lack at the end of a matrix is zero. */

enum { PS_TERMS = 256, PS_STRIP = 4, PS_GROUP = 4 }; /* terms of a sum; vectors, rows at a time */

/* A problem and the distances in its buffers, in elements; a constant that the compiler sees.  Of u,
 * v and w: where the terms of each sum begin, then the terms, a block or product and a factor. */
typedef struct {
    int64_t rows, depth, columns;  /* of A, of both, of B */
    int64_t across_a, across;      /* blocks of a row of A, and of a row of B and of C */
    int64_t high, deep, wide;      /* rows, depth and columns of a block */
    int64_t blocks, products;      /* blocks of C; products of blocks */
    int64_t x_row, w_row, y_row;
    int64_t turned;                /* B is stored column by column */
    int64_t sum, sum_row;          /* sums of A: from one to the next one, from row to row */
    int64_t product, product_row;
    int64_t panel_row;             /* from row to row of a sum of B before it is packed */
    int64_t stream;                /* C goes past the caches where it is aligned */
    float alpha, beta;
    const int64_t *u, *v, *w;
} ps_bilinear;

/* Rows that are summed, each with a factor and `real` elements; all have at least `whole`. */
typedef struct {
    int64_t count, whole;
    const float *from[PS_TERMS];
    int64_t real[PS_TERMS];
    float factor[PS_TERMS];
} ps_terms;

/* Rows of blocks from `row` on, `count` at most, that lie inside of all blocks or of none. */
PS_INLINE int64_t ps_rows_alike(ps_bilinear g, int64_t row, int64_t count)
{
    const int64_t end = row < g.rows % g.high ? g.rows % g.high : g.high;
    return ps_least(ps_least(PS_GROUP, count), ps_most(1, end - row));
}

PS_INLINE void ps_add_term(ps_terms *t, const float *from, int64_t real, int64_t factor)
{
    t->from[t->count] = from;
    t->real[t->count] = real;
    t->factor[t->count++] = (float)factor;
    t->whole = ps_least(t->whole, real);
}

/* Vectors of the sum from element `at` on, which all rows have. */
PS_INLINE void ps_sum_strip(ps_vec *s, int vecs, const ps_terms *t, int64_t at)
{
    PS_UNROLL
    for (int v = 0; v < vecs; ++v)
        s[v] = ps_zero();
    for (int64_t i = 0; i < t->count; ++i) {
        const ps_vec factor = ps_splat(t->factor[i]);
        const float *from = t->from[i] + at;
        PS_UNROLL
        for (int v = 0; v < vecs; ++v)
            s[v] = ps_fma(factor, ps_load(from + v * PS_LANES), s[v]);
    }
}

/* The vector of elements c.. of it, where rows may end. */
PS_INLINE ps_vec ps_sum_end(const ps_terms *t, int64_t at, int64_t c)
{
    ps_vec s = ps_zero();
    for (int64_t i = 0; i < t->count; ++i) {
        const int64_t left = t->real[i] - c;
        if (left <= 0)
            continue;
        const float *from = t->from[i] + at + c;
        const ps_vec x = left >= PS_LANES ? ps_load(from) : ps_load_first(from, (int)left);
        s = ps_fma(ps_splat(t->factor[i]), x, s);
    }
    return s;
}

/* A row of a sum, whole vectors, from element `at` of all its rows on. */
PS_INLINE void ps_sum_row(float *restrict to, int64_t count, const ps_terms *t, int64_t at)
{
    int64_t c = 0;
    for (; c + PS_STRIP * PS_LANES <= t->whole; c += PS_STRIP * PS_LANES) {
        _Alignas(64) ps_vec s[PS_STRIP];
        ps_sum_strip(s, PS_STRIP, t, at + c);
        PS_UNROLL
        for (int v = 0; v < PS_STRIP; ++v)
            ps_store(to + c + v * PS_LANES, s[v]);
    }
    for (; c < count; c += PS_LANES)
        ps_store(to + c, ps_sum_end(t, at, c));
}

/* Sums of rows first..first+count-1 of the blocks of A. */
PS_INLINE void ps_bilinear_sums(ps_bilinear g, const float *restrict x, float *restrict sums,
                                int64_t first, int64_t count)
{
    for (int64_t i = 0, rows; i < count; i += rows) {
        rows = ps_rows_alike(g, first + i, count - i);
        for (int64_t p = 0; p < g.products; ++p) {
            _Alignas(64) ps_terms t;
            t.count = 0;
            t.whole = g.deep;
            for (int64_t at = g.u[p]; at < g.u[p + 1]; at += 2) {
                const int64_t row = g.u[at] / g.across_a * g.high + first + i;
                const int64_t column = g.u[at] % g.across_a * g.deep;
                if (first + i < g.high && row < g.rows && column < g.depth)
                    ps_add_term(&t, x + row * g.x_row + column,
                                ps_least(g.deep, g.depth - column), g.u[at + 1]);
            }
            for (int64_t r = 0; r < rows; ++r)
                ps_sum_row(sums + p * g.sum + (i + r) * g.sum_row, g.deep, &t, r * g.x_row);
        }
    }
}

/* Columns column..column+count-1 of sum p of the blocks of B, in rows as B is stored, whole vectors:
 * by row of the block, or if `turned` by column. */
PS_INLINE void ps_bilinear_factor(ps_bilinear g, const float *restrict w, float *restrict to,
                                  int64_t p, int64_t column, int64_t count)
{
    const int64_t rows = g.turned ? count : g.deep, along = g.turned ? g.deep : count;
    for (int64_t r = 0, end; r < rows; r = end) {
        _Alignas(64) ps_terms t;
        t.count = 0;
        t.whole = along;
        end = rows;
        for (int64_t at = g.v[p]; at < g.v[p + 1]; at += 2) {
            const int64_t k0 = g.v[at] / g.across * g.deep;
            const int64_t n0 = g.v[at] % g.across * g.wide + column;
            const int64_t deep = ps_least(g.deep, g.depth - k0);
            const int64_t wide = ps_least(ps_least(count, g.wide - column), g.columns - n0);
            const int64_t high = g.turned ? wide : deep, real = g.turned ? deep : wide;
            if (r >= high || real <= 0)
                continue;
            end = ps_least(end, high);
            ps_add_term(&t, w + (g.turned ? n0 * g.w_row + k0 : k0 * g.w_row + n0), real,
                        g.v[at + 1]);
        }
        for (int64_t row = r; row < end; ++row)
            ps_sum_row(to + row * g.panel_row, along, &t, row * g.w_row);
    }
}

/* What becomes of the sums of a row of C: its place, the bias of its columns, its residual. */
typedef struct {
    float *y;
    const float *bias, *residual;
    ps_activation activation;
    int stream;
    float alpha, beta, low, high;
} ps_bilinear_end;

PS_INLINE ps_vec ps_load_real(const float *p, int lanes)
{
    return lanes == PS_LANES ? ps_load(p) : ps_load_first(p, lanes);
}

/* Some vectors from column `at` on; of the only one some lanes. */
PS_INLINE void ps_bilinear_put(const ps_bilinear_end *e, ps_vec *s, int vecs, int64_t at, int lanes)
{
    PS_UNROLL
    for (int v = 0; v < vecs; ++v) {
        s[v] = ps_mul(ps_splat(e->alpha), s[v]);
        if (e->bias)
            s[v] = ps_add(s[v], ps_load_real(e->bias + at + v * PS_LANES, lanes));
        if (e->residual) {
            const ps_vec x = ps_load_real(e->residual + at + v * PS_LANES, lanes);
            s[v] = ps_add(s[v], ps_mul(ps_splat(e->beta), x));
        }
    }
    ps_activate(s, vecs, e->activation);
    PS_UNROLL
    for (int v = 0; v < vecs; ++v) {
        const ps_vec x = ps_min(ps_splat(e->high), ps_max(ps_splat(e->low), s[v]));
        if (e->stream && lanes == PS_LANES)
            ps_stream(e->y + at + v * PS_LANES, x);
        else if (lanes == PS_LANES)
            ps_store(e->y + at + v * PS_LANES, x);
        else
            ps_store_first(e->y + at + v * PS_LANES, x, lanes);
    }
}

/* A row of C, from element `at` of its products on. */
PS_INLINE void ps_bilinear_row(const ps_bilinear_end *e, int64_t real, const ps_terms *t, int64_t at)
{
    _Alignas(64) ps_vec s[PS_STRIP];
    int64_t c = 0;
    for (; c + PS_STRIP * PS_LANES <= real; c += PS_STRIP * PS_LANES) {
        ps_sum_strip(s, PS_STRIP, t, at + c);
        ps_bilinear_put(e, s, PS_STRIP, c, PS_LANES);
    }
    for (; c < real; c += PS_LANES) {
        s[0] = ps_sum_end(t, at, c);
        ps_bilinear_put(e, s, 1, c, (int)ps_least(PS_LANES, real - c));
    }
}

/* Rows first..first+count-1 and columns column..column+width-1 of the blocks of C, of products of
 * which these are the first ones. */
PS_INLINE void ps_bilinear_output(ps_bilinear g, const ps_args *args,
                                  const float *restrict products, int64_t first, int64_t count,
                                  int64_t column, int64_t width, ps_activation activation)
{
    const float far = __builtin_inff();
    const int64_t last = ps_least(count, g.high - first);
    for (int64_t i = 0, rows; i < last; i += rows) {
        rows = ps_rows_alike(g, first + i, last - i);
        for (int64_t l = 0; l < g.blocks; ++l) {
            const int64_t row = l / g.across * g.high + first + i;
            const int64_t n0 = l % g.across * g.wide + column;
            const int64_t inside = ps_least(width, g.wide - column);
            const int64_t real = ps_least(inside, g.columns - n0);
            if (row >= g.rows || real <= 0)
                continue;
            _Alignas(64) ps_terms t;
            t.count = 0;
            t.whole = real;
            for (int64_t at = g.w[l]; at < g.w[l + 1]; at += 2)
                ps_add_term(&t, products + g.w[at] * g.product + i * g.product_row, real,
                            g.w[at + 1]);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t y = (row + r) * g.y_row + n0;
                const ps_bilinear_end e = {
                    args->y + y, args->bias ? args->bias + n0 : 0,
                    args->residual ? args->residual + y : 0, activation,
                    g.stream && args->aligned, g.alpha, g.beta,
                    args->clamp ? args->clamp[0] : -far, args->clamp ? args->clamp[1] : far};
                ps_bilinear_row(&e, real, &t, r * g.product_row);
            }
        }
    }
}
