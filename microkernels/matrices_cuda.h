/* CUDA C++: matrices of a warp in the memory that a block shares, in chunks of 16 bytes. */

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

/* 16 bytes, copied at once; zeros where they are not real. */
PS_INLINE void ps_copy_chunk(void *to, const void *from, int real)
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
