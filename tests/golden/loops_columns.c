/* GCC 12 takes some loops, once it has rewritten their addresses, for functions without effects,
   and drops their calls: it must not look inside. */
#if defined __GNUC__ && !defined __clang__
#define PS_LOOP PS_KERNEL __attribute__((noipa))
#else
#define PS_LOOP PS_KERNEL
#endif

/* reduce_mean ReduceMean of y */
static PS_LOOP void small_s0(const ps_memory *m)
{
    float *restrict y = (float *)m->out[0];
    const float *restrict x1 = (const float *)m->in[0];
#pragma omp for schedule(static) nowait
    for (int64_t j0 = 0; j0 < 36; j0 += 64) {
        _Alignas(64) float acc[36];
        const int64_t length = 36;
#pragma omp simd
        for (int64_t j = 0; j < length; ++j) {
            acc[j] = 0.0f;
        }
        for (int64_t r1 = 0; r1 < 8; ++r1) {
#pragma omp simd
            for (int64_t j = 0; j < length; ++j) {
                acc[j] = (acc[j] + x1[36 * r1 + j0 + j]);
            }
        }
#pragma omp simd
        for (int64_t j = 0; j < length; ++j) {
            y[j0 + j] = (acc[j] * 0x1.0000000000000p-3f);
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

