/* CUDA C++, from sm_80 on: sums of 16 rows and 8 columns of a warp, 16 steps at once.  Names of what
 * PS_EMULATED leaves out are an emulation's. */
#ifndef PS_EMULATED
PS_INLINE void ps_mma(ps_acc *low, ps_acc *high, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PS_X_NAME "." PS_X_NAME ".f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(low->lane[0]), "+f"(low->lane[1]), "+f"(high->lane[0]), "+f"(high->lane[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
