/* CUDA C++, from sm_80 on: sums of 16 rows and 8 columns of a warp, 16 steps at once, and copies that
 * run beside them.  Names of what PS_EMULATED leaves out are an emulation's. */
#ifndef PS_EMULATED
PS_INLINE void ps_mma(ps_acc *low, ps_acc *high, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PS_X_NAME "." PS_X_NAME ".f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(low->lane[0]), "+f"(low->lane[1]), "+f"(high->lane[0]), "+f"(high->lane[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#ifndef PS_EMULATED
/* 16 bytes, on their way until a group of copies that holds them is waited for; zeros where they are
 * not real, of which nothing is read. */
PS_INLINE void ps_copy_async(void *to, const void *from, int real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}
/* The copies since the last group become one. */
PS_INLINE void ps_commit(void) { asm volatile("cp.async.commit_group;" : : : "memory"); }
/* All groups have ended but for the `pending` last ones, a number known now. */
#define ps_await(pending) asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory")
#endif
