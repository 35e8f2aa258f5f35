/* GCC 12 takes some loops, once it has rewritten their addresses, for functions without effects,
   and drops their calls: it must not look inside. */
#if defined __GNUC__ && !defined __clang__
#define PS_LOOP PS_KERNEL __attribute__((noipa))
#else
#define PS_LOOP PS_KERNEL
#endif

/* tanh Tanh of a + mul Mul of y */
static PS_LOOP void small_s0(const ps_memory *m)
{
    float *restrict y = (float *)m->out[0];
    const float *restrict x1 = (const float *)m->in[0];
    const float *restrict x2 = (const float *)m->constants;
#pragma omp for collapse(2) schedule(static) nowait
    for (int64_t i1 = 0; i1 < 8; ++i1) {
        for (int64_t i2 = 0; i2 < 6; ++i2) {
            const float v0 = x2[i2];
#pragma omp simd
            for (int64_t i3 = 0; i3 < 6; ++i3) {
                y[36 * i1 + 6 * i2 + i3] = (ps_f_tanh(x1[36 * i1 + 6 * i2 + i3]) * v0);
            }
        }
    }
}

static void stages(const ps_memory *m)
{
    small_s0(m);
}

/* What one thread does of a run: its caller gets the mode of its numbers back. */
static void share(const ps_memory *m)
{
    const uint64_t mode = ps_flush_denormals();
    stages(m);
    ps_restore_mode(mode);
}

