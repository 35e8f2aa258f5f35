/* Register tiles of the work-items of a group, out of words of four 8-bit numbers that lie in the
 * memory that they share: lines of rows of A, and of columns of B, one for four steps. */

typedef uint32_t ps_four; /* four 8-bit numbers; pointers to it are of no address space */

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

/* acc += A * B over the steps of a word, which rows of A have, and a panel of B; its vectors lie
 * `apart`. */
PS_INLINE void ps_add_words(ps_acc *acc, ps_tile t, const ps_four *av, const ps_b *b, int64_t apart)
{
    _Alignas(64) ps_int bv[8];
    PS_UNROLL
    for (int v = 0; v < t.vecs; ++v)
        bv[v] = ps_panel_words(b + PS_WORD * v * apart);
    PS_UNROLL
    for (int i = 0; i < t.rows; ++i) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            acc[i * t.vecs + v] = ps_dot_words(av[i], bv[v], acc[i * t.vecs + v]);
    }
}

/* acc += A * B over `depth` steps, of which a word has PS_WORD, of what the item reads itself.  Row i
 * of A lies at places[i] of x, and its steps a_k apart, if they are not `whole`: words at multiples of
 * their size.  Below 0 it holds `zero`.  B is a panel of words, `b_line` from one step to the next;
 * its vectors lie `apart`. */
PS_INLINE void ps_read_words(ps_acc *acc, ps_tile t, const ps_x *x, const ps_place *places,
                             int64_t a_k, int whole, int32_t zero, const ps_b *b, int64_t b_line,
                             int depth, int64_t apart)
{
    PS_UNROLL
    for (int k = 0; k < depth; k += PS_WORD) {
        _Alignas(64) ps_four av[16]; /* of the rows of a tile */
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i)
            av[i] = places[i] < 0 ? (uint8_t)zero * 0x01010101u
                    : whole       ? ps_word_of(x + places[i] + k)
                                  : ps_gathered_word(x + places[i] + k * a_k, a_k, depth - k);
        ps_add_words(acc, t, av, b + k * b_line, apart);
    }
}
