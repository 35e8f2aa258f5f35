/* GCC 12 takes some loops, once it has rewritten their addresses, for functions without effects,
   and drops their calls: it must not look inside. */
#if defined __GNUC__ && !defined __clang__
#define PS_LOOP PS_KERNEL __attribute__((noipa))
#else
#define PS_LOOP PS_KERNEL
#endif

/* MaxPool MaxPool of y */
static PS_LOOP void small_s0(const ps_memory *m)
{
    float *restrict y = (float *)m->out[0];
    const float *restrict x1 = (const float *)m->in[0];
    for (int64_t i1 = 0; i1 < 8; ++i1) {
        for (int64_t i2 = 0; i2 < 6; ++i2) {
            for (int64_t j0 = 0; j0 < 6; j0 += 64) {
                _Alignas(64) float acc[6];
                const int64_t length = 6;
#pragma omp simd
                for (int64_t j = 0; j < length; ++j) {
                    acc[j] = -INFINITY;
                }
                for (int64_t r0 = ps_most(0, -i2 + 1); r0 < ps_least(3, -i2 + 7); ++r0) {
                    for (int64_t r1 = 0; r1 < 3; ++r1) {
#pragma omp simd
                        for (int64_t j = 0; j < length; ++j) {
                            acc[j] = (uint64_t)(j0 + j + r1 - 1) < 6 ? ps_f_max(acc[j], x1[36 * i1 + 6 * i2 + 6 * r0 + j0 + j + r1 - 7]) : acc[j];
                        }
                    }
                }
#pragma omp simd
                for (int64_t j = 0; j < length; ++j) {
                    y[36 * i1 + 6 * i2 + j0 + j] = acc[j];
                }
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

