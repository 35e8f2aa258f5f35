/* Grouped convolution on vectors of channels: groups of neighbouring columns lie side by side in a
 * vector, and A, as in depthwise, is a vector along them.
 *
 *   C[i][j ^ d] += A[row(i) + k * a_k + j] * B[(k * shifts + d) * columns + j],  0 <= d < shifts
 *
 * Shift d of column j belongs to column j ^ d of the same group.  It is summed in an accumulator of
 * its own, acc[(d * rows + i) * vecs + v], where column j stays in lane j: no lane moves in the inner
 * loop, and none is wasted.  `shifts` is a power of two and divides PS_LANES.
 *
 * Where a lane of A holds a word of `together` channels, an instruction adds their products for one
 * column.  Vector u of A has the words of as many columns as `together` vectors have:
 *
 *   C[i][(l ^ d) * together + c] += sum of the products of word l of A and that of B in lane l of
 *                                   vector u * together + c of step k and shift d
 *
 * counted from the first column of the vector.  A group has shifts * together columns, and the vectors
 * of sums are brought into the order of columns once, in ps_unshift. */

/* Vectors of A along the columns. */
PS_INLINE int ps_vecs_of_a(ps_tile t) { return ps_sum_vecs(t) / ps_in_lane(t); }

/* Used lanes of vector u of A. */
PS_INLINE int ps_used_of_a(ps_tile t, int u)
{
    const int word = ps_in_lane(t), columns = (t.vecs - 1 - u * word) * PS_LANES + t.lanes;
    return columns < PS_LANES * word ? (columns + word - 1) / word : PS_LANES;
}

/* Vector u of row i of A, or `filling` where it is not `real`. */
PS_INLINE ps_wide ps_channels(ps_tile t, int real, const ps_wide *filling, const ps_a *restrict a,
                              int i, int u)
{
    const ps_a *at = a + ps_a_row(t, i) + u * PS_LANES * ps_in_lane(t);
    return real ? ps_beside(at, ps_used_of_a(t, u)) : *filling;
}

/* The vector of a panel, and the sum of row i, for product m of vector u: that of shift
 * m / ps_in_lane(t) and of the column of a word that is left over. */
PS_INLINE int ps_product_at(ps_tile t, int rows, int i, int u, int m)
{
    const int word = ps_in_lane(t);
    return (m / word * rows + i) * ps_sum_vecs(t) + u * word + m % word;
}

/* One step on vector u of A, all of B that it meets in registers and A passing by.  The barriers
 * here keep compilers from loading what passes by once for each of its uses.  Rows whose bit is not
 * set read `filling` if it is not null. */
PS_INLINE void ps_hold_b(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                         const ps_a *restrict a, const ps_b *restrict b, int u)
{
    const int products = t.shifts * ps_in_lane(t);
    _Alignas(64) ps_wide bv[PS_LANES];
    PS_UNROLL
    for (int m = 0; m < products; ++m)
        bv[m] = ps_panel(b + ps_product_at(t, 1, 0, u, m) * PS_LANES * PS_WORD);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        const int real = rows >> i & 1;
        if (!real && !filling)
            continue;
        const ps_wide av = ps_channels(t, real, filling, a, i, u);
        PS_RELOAD();
        PS_UNROLL
        for (int m = 0; m < products; ++m) {
            ps_acc *const sum = &acc[ps_product_at(t, t.rows, i, u, m)];
            *sum = ps_dot(av, bv[m], *sum);
        }
    }
}

/* The same with the rows of A in registers and B passing by. */
PS_INLINE void ps_hold_a(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                         const ps_a *restrict a, const ps_b *restrict b, int u)
{
    const int products = t.shifts * ps_in_lane(t);
    _Alignas(64) ps_wide av[PS_LANES];
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i)
        if (rows >> i & 1 || filling)
            av[i] = ps_channels(t, rows >> i & 1, filling, a, i, u);
    PS_UNROLL
    for (int m = 0; m < products; ++m) {
        const ps_wide bv = ps_panel(b + ps_product_at(t, 1, 0, u, m) * PS_LANES * PS_WORD);
        PS_RELOAD();
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            ps_acc *const sum = &acc[ps_product_at(t, t.rows, i, u, m)];
            if (rows >> i & 1 || filling)
                *sum = ps_dot(av[i], bv, *sum);
        }
    }
}

PS_INLINE void ps_steps_grouped(ps_acc *acc, ps_tile t, uint32_t rows, const ps_wide *filling,
                                const ps_a *restrict a, const ps_b *restrict b, int64_t length,
                                int64_t a_k)
{
    const int b_k = t.shifts * ps_sum_vecs(t) * PS_LANES * PS_WORD;
    for (int64_t k = 0; k < length; ++k, a += a_k, b += b_k) {
        PS_RELOAD();
        PS_UNROLL
        for (int u = 0; u < ps_vecs_of_a(t); ++u) { /* of both factors the fewer stay in registers */
            if (t.rows < t.shifts * ps_in_lane(t))
                ps_hold_a(acc, t, rows, filling, a, b, u);
            else
                ps_hold_b(acc, t, rows, filling, a, b, u);
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
    const int count = d < t.shifts ? t.rows * ps_sum_vecs(t) * d : 0;
    PS_UNROLL
    for (int i = 0; i < count; ++i) {
        const ps_vec moved = ps_swap(ps_acc_bits(acc[count + i]), d);
        acc[i] = ps_acc_add(acc[i], ps_acc_of(moved));
    }
}

/* Sums of the columns of words, a vector for each, into the order of columns: of two, or of four. */
PS_INLINE void ps_columns_in_order(ps_acc *acc, ps_tile t)
{
    const int word = ps_in_lane(t), half = word / 2;
    PS_UNROLL
    for (int i = 0; i < t.rows * ps_vecs_of_a(t); ++i) {
        const int row = i / ps_vecs_of_a(t), u = i % ps_vecs_of_a(t);
        _Alignas(64) ps_vec x[4];
        PS_UNROLL
        for (int c = 0; c < word; ++c) /* of four the first and third, then the second and fourth */
            x[c] = ps_acc_bits(acc[i * word + c % 2 * half + c / 2]);
        PS_UNROLL
        for (int c = 0; c < half; ++c)
            ps_interleave_pair(&x[2 * c], &x[2 * c + 1]);
        PS_UNROLL
        for (int c = 0; c < 2; ++c)
            if (word == 4)
                ps_interleave_pair(&x[c], &x[c + 2]);
        PS_UNROLL
        for (int c = 0; c < word; ++c) {
            const int v = u * word + c, from = word == 4 ? c % 2 * 2 + c / 2 : c;
            if (v < t.vecs)
                acc[row * t.vecs + v] = ps_acc_of(x[from]);
        }
    }
}

/* Those of all shifts into those of none, column by column, once before ps_end. */
PS_INLINE void ps_unshift(ps_acc *acc, ps_tile t)
{
    ps_fold(acc, t, 8);
    ps_fold(acc, t, 4);
    ps_fold(acc, t, 2);
    ps_fold(acc, t, 1);
    if (ps_in_lane(t) > 1)
        ps_columns_in_order(acc, t);
}
