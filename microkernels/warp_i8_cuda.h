/* CUDA C++: tiles of warps out of 8-bit numbers in the memory that a block shares, in chunks of 16
 * bytes: A in lines of a row's steps, B in lines of a column's. */

enum { PS_CHUNK = 16 }; /* numbers */

/* acc += A * B over `depth` steps.  `a` and `b` are the first lines
 * of the warp's rows and columns.  Row i of a lane is lane / 4 + 8 * i of the warp's; its vectors are
 * pairs of columns, 8 apart. */
PS_INLINE void ps_run_warp_words(ps_acc *acc, ps_tile t, const ps_rows *a, const ps_columns *b,
                                 int depth, int a_line, int b_line, int a_chunks, int b_chunks,
                                 int lane)
{
    const int row = lane % 16, later = lane / 16;
    const int column = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
    a += row * a_line, b += column * b_line;
    PS_UNROLL
    for (int k = 0; k < depth; k += 2 * PS_CHUNK) {
        uint32_t av[4][4], bv[2][2]; /* of up to 64 rows, and 16 columns at a time */
        const int a_at = ps_chunk_at(row, k / PS_CHUNK + later, a_chunks);
        const int b_at = ps_chunk_at(column, k / PS_CHUNK + half, b_chunks);
        PS_UNROLL
        for (int i = 0; i < t.rows / 2; ++i)
            ps_load_matrices(av[i], a + 16 * i * a_line + a_at * PS_CHUNK);
        PS_UNROLL
        for (int j = 0; j < t.vecs; j += 2) {
            ps_load_matrices(bv[0], b + 8 * j * b_line + b_at * PS_CHUNK);
            PS_UNROLL
            for (int i = 0; i < t.rows / 2; ++i) {
                ps_acc *low = acc + 2 * i * t.vecs + j, *high = low + t.vecs;
                ps_mma_words(low, high, av[i], bv[0]);
                ps_mma_words(low + 1, high + 1, av[i], bv[1]);
            }
        }
    }
}
