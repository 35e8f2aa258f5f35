/* CUDA C++, from sm_80 on: whole sums of 16 rows and 8 columns of a warp, 32 steps at once. */
#ifndef PS_EMULATED
#define PS_MMA_WORDS(kind)                                                                         \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." kind ".s8.s32 {%0,%1,%2,%3}, "                    \
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                   \
        : "+r"(low->lane[0]), "+r"(low->lane[1]), "+r"(high->lane[0]), "+r"(high->lane[1])         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
PS_INLINE void ps_mma_words(ps_acc *low, ps_acc *high, const uint32_t *a, const uint32_t *b)
{
    if (PS_X_SIGNED)
        PS_MMA_WORDS("s8");
    else
        PS_MMA_WORDS("u8");
}
#endif
/* A copy that runs beside the sums; `zero` in all places where it is not real. */
PS_INLINE void ps_copy_async_filled(ps_rows *to, const ps_x *from, int real, int32_t zero)
{
    if (real)
        ps_copy_async(to, from, 1);
    else
        *(uint4 *)to = ps_filled(zero);
}
