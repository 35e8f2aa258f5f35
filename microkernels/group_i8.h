/* Register tiles of the work-items of a group, out of words of four 8-bit numbers that lie in the
 * memory that they share: lines of rows of A, and of columns of B, one for four steps. */

/* acc += A * B over `words` lines.  Rows of A are neighbours; vectors of B lie `apart`, so that the
 * items of a group read neighbouring ones at a time. */
PS_INLINE void ps_run_words(ps_acc *acc, ps_tile t, const PS_LOCAL ps_rows *a,
                            const PS_LOCAL ps_columns *b, int words, int a_line, int b_line,
                            int apart)
{
    PS_UNROLL
    for (int k = 0; k < words; ++k, a += PS_WORD * a_line, b += PS_WORD * b_line) {
        _Alignas(64) ps_int bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_column_words(b + PS_WORD * v * apart);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            const uint32_t av = ps_row_word(a + PS_WORD * i);
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] = ps_dot_words(av, bv[v], acc[i * t.vecs + v]);
        }
    }
}

/* Epilogue and store of the first `rows` rows, which lie at `places` in y, and of the columns below
 * `columns`; vectors are `apart`. */
PS_INLINE void ps_end_lines(ps_acc *acc, ps_tile t, const ps_place *places, int64_t rows,
                            int64_t columns, int64_t apart, ps_y *y, const ps_epilogue *e)
{
    ps_tile one = t;
    one.rows = one.vecs = one.wrap = 1;
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            const int64_t n = v * apart, c = places[i] + n * t.c_col;
            ps_epilogue own = *e;
            one.lanes = (int)ps_least(columns - n, t.lanes);
            if (i >= rows || one.lanes <= 0)
                continue;
            own.offset += n;
            if (e->to)
                own.scale += n;
            if (e->bias)
                own.bias += n;
            if (e->residual)
                own.residual += c;
            ps_end(acc + i * t.vecs + v, one, y + c, &own);
        }
    }
}
