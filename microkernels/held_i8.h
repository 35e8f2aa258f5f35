/* ps_read_words of an x that lies in the memory of a group. */
PS_INLINE void ps_held_words(ps_acc *acc, ps_tile t, const PS_LOCAL ps_rows *x,
                             const ps_place *places, int64_t a_k, int whole, int32_t zero,
                             const ps_b *b, int64_t b_line, int depth, int64_t apart)
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
