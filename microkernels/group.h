/* Register tiles of the work-items of a group, which have copied both factors into the memory that
 * they share: lines of rows of A, and of columns of B, one a step of the reduction. */

typedef ps_b ps_shared; /* an element of either factor in that memory */

/* A vector of neighbours in x into as many lines, `line` apart; zeros where they are not real. */
PS_INLINE void ps_copy_across(PS_LOCAL ps_shared *to, int line, const ps_x *x, int real)
{
    const ps_vec v = real ? ps_x_real(x, PS_LANES) : ps_zero();
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        to[i * line] = ps_lane(v, i);
}

/* A vector of neighbours of packed weights into one line: panels lie on whole vectors. */
PS_INLINE void ps_copy_along(PS_LOCAL ps_shared *to, const ps_b *from)
{
    ps_store_shared(to, ps_load_aligned(from));
}

/* acc += A * B over `depth` steps.  Rows of A are neighbours; vectors of B lie `apart`, so that the
 * items of a group read neighbouring ones at a time. */
PS_INLINE void ps_run_lines(ps_acc *acc, ps_tile t, const PS_LOCAL ps_shared *a,
                            const PS_LOCAL ps_shared *b, int depth, int a_line, int b_line,
                            int apart)
{
    PS_UNROLL
    for (int k = 0; k < depth; ++k, a += a_line, b += b_line) {
        _Alignas(64) ps_vec bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_load_shared(b + v * apart);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const ps_vec av = ps_splat(a[i]);
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] = ps_fma(av, bv[v], acc[i * t.vecs + v]);
        }
    }
}
