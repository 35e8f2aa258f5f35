
/* A run, and the threads of the caller's pool that have come to share it. */
enum { THREADS = @COUNT@, CLOSED = 1 << 30, PATIENCE = 16 * PS_SPINS };
typedef struct {
    ps_meeting meeting;
    atomic_uint joined, threads; /* threads: 0 while more may come */
    unsigned most;
    const ps_memory *m;
} ps_call;

/* One part of a run. The first to come waits a while for others; those that come later find it
 * closed and leave, so that a pool may run parts at any time, or one after the other. */
static void part_of(void *data, int index)
{
    ps_call *call = data;
    unsigned thread = atomic_load(&call->joined);
    (void)index;
    do
        if (thread >= call->most)
            return;
    while (!atomic_compare_exchange_weak(&call->joined, &thread, thread + 1));
    if (thread) {
        ps_await(&call->meeting, &call->threads, 0, thread);
    } else {
        for (int i = 0; i < PATIENCE && atomic_load(&call->joined) < call->most; ++i)
            ps_pause();
        atomic_store(&call->threads, atomic_exchange(&call->joined, CLOSED));
    }
    const polysci_team team = {thread, atomic_load(&call->threads), ps_meet, &call->meeting};
    _Alignas(64) ps_memory m = *call->m;
    m.team = &team;
    share(&m);
}

static void run_together(@NAME@_parallel *parallel, void *pool, const ps_memory *m)
{
    ps_call call = {.most = THREADS, .m = m};
    if (parallel)
        parallel(pool, THREADS, part_of, &call);
    call.most = 1;
    part_of(&call, 0); /* unless the pool has run it */
}
