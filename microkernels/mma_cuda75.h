/* CUDA C++, from sm_75 on: sums of 16 rows and 8 columns of a warp.  Two instructions take 8 steps
 * each.  Names of what PS_EMULATED leaves out are an emulation's. */
#ifndef PS_EMULATED
PS_INLINE void ps_mma_half(ps_acc *low, ps_acc *high, const uint32_t *a, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32." PS_X_NAME "." PS_X_NAME ".f32 {%0,%1,%2,%3}, "
        "{%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(low->lane[0]), "+f"(low->lane[1]), "+f"(high->lane[0]), "+f"(high->lane[1])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
PS_INLINE void ps_mma(ps_acc *low, ps_acc *high, const uint32_t *a, const uint32_t *b)
{
    ps_mma_half(low, high, a, b[0]);
    ps_mma_half(low, high, a + 2, b[1]);
}
#endif
