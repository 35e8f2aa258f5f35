/* Grouped convolution on vectors of channels: groups of `shifts` columns lie side by side in a vector,
 * and A, as in depthwise, is a vector along them.
 *
 *   C[i][j ^ d] += A[row(i) + k * a_k + j] * B[(k * shifts + d) * columns + j],  0 <= d < shifts
 *
 * Shift d of column j belongs to column j ^ d of the same group.  It is summed in an accumulator of
 * its own, acc[(d * rows + i) * vecs + v], where column j stays in lane j: no lane moves in the inner
 * loop, and none is wasted.  `shifts` is a power of two and divides PS_LANES. */

/* One step on vector v of the columns, all shifts of B in registers and A passing by.  The barriers
 * here keep compilers from loading what passes by once for each of its uses.  Rows whose bit is not
 * set read `filling` if it is not null. */
PS_INLINE void ps_hold_b(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                         const ps_a *restrict a, const ps_b *restrict b, int v)
{
    _Alignas(64) ps_wide bv[PS_LANES];
    PS_UNROLL
    for (int d = 0; d < t.shifts; ++d)
        bv[d] = ps_panel(b + (d * t.vecs + v) * PS_LANES * PS_WORD);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        const int real = rows >> i & 1;
        if (!real && !filling)
            continue;
        const ps_a *row = a + ps_a_row(t, i) + v * PS_LANES;
        const ps_wide av = real ? ps_beside(row, ps_used(t, v)) : *filling;
        PS_RELOAD();
        PS_UNROLL
        for (int d = 0; d < t.shifts; ++d) {
            ps_acc *const sum = &acc[(d * t.rows + i) * t.vecs + v];
            *sum = ps_dot(av, bv[d], *sum);
        }
    }
}

/* The same with the rows of A in registers and B passing by. */
PS_INLINE void ps_hold_a(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                         const ps_a *restrict a, const ps_b *restrict b, int v)
{
    _Alignas(64) ps_wide av[PS_LANES];
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        if (rows >> i & 1)
            av[i] = ps_beside(a + ps_a_row(t, i) + v * PS_LANES, ps_used(t, v));
        else if (filling)
            av[i] = *filling;
    }
    PS_UNROLL
    for (int d = 0; d < t.shifts; ++d) {
        const ps_wide bv = ps_panel(b + (d * t.vecs + v) * PS_LANES * PS_WORD);
        PS_RELOAD();
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            ps_acc *const sum = &acc[(d * t.rows + i) * t.vecs + v];
            if (rows >> i & 1 || filling)
                *sum = ps_dot(av[i], bv, *sum);
        }
    }
}

PS_INLINE void ps_steps_grouped(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                                const ps_a *restrict a, const ps_b *restrict b, int64_t length,
                                int64_t a_k)
{
    for (int64_t k = 0; k < length; ++k, a += a_k, b += t.shifts * t.vecs * PS_LANES * PS_WORD) {
        PS_RELOAD();
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) { /* of rows and shifts the fewer stay in registers */
            if (t.rows < t.shifts)
                ps_hold_a(acc, t, rows, filling, a, b, v);
            else
                ps_hold_b(acc, t, rows, filling, a, b, v);
        }
    }
}

/* ps_run of such a tile. */
PS_INLINE void ps_run_grouped(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                              const ps_b *restrict b, int64_t length, int64_t a_k)
{
    ps_steps_grouped(acc, t, rows, 0, a, b, length, a_k);
}

/* ps_run_filled of such a tile. */
PS_INLINE void ps_run_grouped_filled(ps_acc *acc, ps_tile t, uint32_t rows, int32_t zero,
                                     const ps_a *restrict a, const ps_b *restrict b,
                                     int64_t length, int64_t a_k, int width)
{
    const ps_wide filling = ps_filling(zero);
    (void)width;
    ps_steps_grouped(acc, t, rows, &filling, a, b, length, a_k);
}

/* The accumulators of shift d and above into those below it. */
PS_INLINE void ps_fold(ps_acc *acc, ps_tile t, int d)
{
    const int count = d < t.shifts ? t.rows * t.vecs * d : 0;
    PS_UNROLL
    for (int i = 0; i < count; ++i) {
        const ps_vec moved = ps_swap(ps_acc_bits(acc[count + i]), d);
        acc[i] = ps_acc_add(acc[i], ps_acc_of(moved));
    }
}

/* Those of all shifts into those of none, once before ps_end. */
PS_INLINE void ps_unshift(ps_acc *acc, ps_tile t)
{
    ps_fold(acc, t, 8);
    ps_fold(acc, t, 4);
    ps_fold(acc, t, 2);
    ps_fold(acc, t, 1);
}
