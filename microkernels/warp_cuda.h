/* CUDA C++: tiles of warps out of the memory that a block shares, in chunks of 16 bytes: A in lines
 * of a row's steps, B in lines of a step's columns. */

#ifndef PS_EMULATED
/* Four matrices of 8 x 8 numbers of 16 bits; lane i has the place of row i % 8 of matrix i / 8.  In
 * the result a lane has two neighbours of row lane / 4 of each. */
PS_INLINE void ps_load_matrices(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}
/* The same of their columns: two neighbours of column lane / 4. */
PS_INLINE void ps_load_columns(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}
#endif

enum { PS_CHUNK = 8 }; /* numbers */

/* 16 bytes, copied at once; zeros where they are not real. */
PS_INLINE void ps_copy_chunk(ps_shared *to, const ps_x *from, int real)
{
    *(uint4 *)to = real ? *(const uint4 *)from : uint4{0, 0, 0, 0};
}

/* Which chunk of a line holds chunk `at`, where lines have `chunks` that change places from line to
 * line, so that 8 lines have the same one in other banks; 0: they are in order. */
PS_INLINE int ps_chunk_at(int line, int at, int chunks)
{
    const int few = chunks < 8;
    return chunks ? at ^ (few ? line / (8 / chunks) % chunks : line % 8) : at;
}

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
