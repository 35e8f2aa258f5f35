/* The microkernel with its factors swapped: A is packed ahead, in panels of a register tile's rows,
 * and B is x, read row by row where it lies.  Of C and B not a byte outside the used lanes is
 * touched: the last vector of a row is loaded under a mask.  All numbers are f32. */

/* acc += A * B over `length` steps: A moves by its rows, which lie side by side, B by b_k.  Where
 * `next` is not 0, each step prefetches the line so many elements after B's. */
PS_INLINE void ps_run_rows(ps_acc *acc, ps_tile t, const ps_b *restrict a, const ps_a *restrict b,
                           int64_t length, int64_t b_k, int64_t next)
{
    for (int64_t k = 0; k < length; ++k, a += t.rows, b += b_k) {
        __asm__ volatile("" : : : "memory"); /* as in ps_steps */
        if (next)
            __builtin_prefetch(b + next);
        ps_vec bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_used(t, v) == PS_LANES ? ps_load(b + v * PS_LANES)
                                              : ps_load_first(b + v * PS_LANES, ps_used(t, v));
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] = ps_fma(ps_splat(a[i]), bv[v], acc[i * t.vecs + v]);
        }
    }
}

/* ps_end where a bias belongs to a row of C. */
PS_INLINE void ps_end_rows(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    if (!e) {
        ps_end(acc, t, c, 0);
        return;
    }
    ps_settle(acc, t);
    if (e->bias) {
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const ps_vec bias = ps_splat(e->bias[i]);
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] = ps_add(acc[i * t.vecs + v], bias);
        }
    }
    ps_epilogue rest = *e;
    rest.bias = 0;
    ps_end(acc, t, c, &rest);
}

/* The pixels of an image, row.step rows and row.x_channel elements apart, one behind the other. */
PS_INLINE void ps_gather_image(ps_a *restrict box, const ps_x *restrict x, ps_row row)
{
    for (int64_t i = 0; i < row.pixels; ++i)
        for (int64_t j = 0; j < row.channels; ++j)
            box[i * row.box_pixel + j] = x[i * row.step * row.x_pixel + j * row.x_channel];
}
