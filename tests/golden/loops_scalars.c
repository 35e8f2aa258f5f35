/* GCC 12 takes some loops, once it has rewritten their addresses, for functions without effects,
   and drops their calls: it must not look inside. */
#if defined __GNUC__ && !defined __clang__
#define PS_LOOP PS_KERNEL __attribute__((noipa))
#else
#define PS_LOOP PS_KERNEL
#endif

/* ReduceMean ReduceMean of y */
static PS_LOOP void small_s0(const ps_memory *m)
{
    float *restrict y = (float *)m->out[0];
    const float *restrict x1 = (const float *)m->in[0];
    for (int64_t i2 = 0; i2 < 48; ++i2) {
        float acc = 0.0f;
        for (int64_t r3 = 0; r3 < 6; ++r3) {
            acc = (acc + x1[6 * i2 + r3]);
        }
        y[i2] = (acc * 0x1.5555560000000p-3f);
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

