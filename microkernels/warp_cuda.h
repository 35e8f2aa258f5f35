/* CUDA C++: tiles of warps out of the memory that a block shares, in chunks of 16 bytes: A in lines
 * of a row's steps, B in lines of a step's columns. */

enum { PS_CHUNK = 8 }; /* numbers */

/* acc += A * B over `depth` steps.  `a` is the first line of the warp's rows, `b` that of the step,
 * of whose columns the warp has those from `column` on.  Row i of a lane is lane / 4 + 8 * i of the
 * warp's; its vectors are pairs of columns, 8 apart. */
PS_INLINE void ps_run_warp(ps_acc *acc, ps_tile t, const ps_shared *a, const ps_shared *b, int depth,
                           int a_line, int b_line, int a_chunks, int b_chunks, int column, int lane)
{
    const int line = lane % 16, half = lane / 16;
    a += line * a_line, b += line * b_line;
    PS_UNROLL
    for (int k = 0; k < depth; k += 2 * PS_CHUNK) {
        uint32_t av[4][4], bv[8][2]; /* of up to 64 rows and columns */
        const int a_at = ps_chunk_at(line, k / PS_CHUNK + half, a_chunks);
        PS_UNROLL
        for (int i = 0; i < t.rows / 2; ++i)
            ps_load_matrices(av[i], a + 16 * i * a_line + a_at * PS_CHUNK);
        PS_UNROLL
        for (int j = 0; j < t.vecs; j += 2) {
            const int b_at = ps_chunk_at(line, column / PS_CHUNK + j + half, b_chunks);
            ps_load_columns(bv[j], b + k * b_line + b_at * PS_CHUNK);
        }
        PS_UNROLL
        for (int i = 0; i < t.rows / 2; ++i) {
            PS_UNROLL
            for (int j = 0; j < t.vecs; ++j)
                ps_mma(acc + 2 * i * t.vecs + j, acc + (2 * i + 1) * t.vecs + j, av[i], bv[j]);
        }
    }
}
