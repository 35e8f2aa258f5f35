/* CUDA C++, from sm_80 on: copies that run beside what a warp computes. */
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
