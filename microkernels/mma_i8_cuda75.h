/* CUDA C++, from sm_75 on: whole sums of 16 rows and 8 columns of a warp.  Four instructions take 8
 * rows and 16 steps each. */
#ifndef PS_EMULATED
PS_INLINE void ps_mma_half(ps_acc *sums, uint32_t a, uint32_t b)
{
    if (PS_X_SIGNED)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+r"(sums->lane[0]), "+r"(sums->lane[1])
            : "r"(a), "r"(b));
    else
        asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+r"(sums->lane[0]), "+r"(sums->lane[1])
            : "r"(a), "r"(b));
}
PS_INLINE void ps_mma_words(ps_acc *low, ps_acc *high, const uint32_t *a, const uint32_t *b)
{
    ps_mma_half(low, a[0], b[0]), ps_mma_half(high, a[1], b[0]);
    ps_mma_half(low, a[2], b[1]), ps_mma_half(high, a[3], b[1]);
}
#endif
