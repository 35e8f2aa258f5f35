/* Register tiles with every size a constant, as generated code has them.  Before this text: the
 * steps of brgemm_amx.h for one ps_a. */

#define FIXED(name, rows_, vecs_, wrap_, lanes_, outer, inner, length, deep)                       \
    void name(const ps_a *, const ps_b *, ps_y *, const ps_epilogue *, int *);                     \
    PS_KERNEL void name(const ps_a *a, const ps_b *b, ps_y *c, const ps_epilogue *e,               \
                        int *configured)                                                           \
    {                                                                                              \
        static const ps_tile t = {.rows = rows_, .vecs = vecs_, .wrap = wrap_, .lanes = lanes_,    \
                                  .a_outer = outer, .a_inner = inner, .c_outer = wrap_ * 64,       \
                                  .c_inner = 64, .c_col = 1, .words = deep};                       \
        ps_acc acc[rows_ * vecs_];                                                                 \
        ps_tiles_configure(configured, t);                                                         \
        ps_begin(acc, t, c, 0);                                                                    \
        for (int tap = 0; tap < 3; ++tap)                                                          \
            ps_run(acc, t, ps_first_bits(rows_), a + tap * inner,                                  \
                   b + tap * length * vecs_ * 16 * PS_WORD, length, PS_WORD);                      \
        ps_end(acc, t, c, e);                                                                      \
    }
FIXED(two_by_two, 28, 2, 28, 16, 0, 256, 128, 0)        /* one image row of 28 */
FIXED(by_line, 28, 2, 14, 16, 16 * 256, 256, 128, 0)    /* two image rows of 14, padded */
FIXED(four_by_one, 49, 1, 7, 16, 9 * 256, 256, 128, 0)  /* seven image rows of 7, padded */
FIXED(one_by_four, 14, 4, 14, 16, 0, 256, 128, 0)
FIXED(gathered, 28, 2, 7, 16, 40 * 256, 256, 128, 0)    /* image rows too far apart */
FIXED(tail, 28, 2, 28, 5, 0, 256, 24, 0)
FIXED(shallow, 28, 2, 28, 5, 0, 256, 24, 12)           /* the same without a rest of k */
