
/* Threads of a context: the one that runs it, and workers, which wait for its runs. */
typedef struct {
    ps_meeting meeting;
    atomic_uint runs; /* how many have begun */
    const ps_memory *m; /* of the last one */
    int threads;
} ps_pool;

static void part_of(ps_pool *pool, int64_t thread)
{
    const polysci_team team = {thread, pool->threads, ps_meet, &pool->meeting};
    _Alignas(64) ps_memory m = *pool->m;
    m.team = &team;
    share(&m);
    ps_meet(&team);
}

static void run_together(ps_pool *pool, const ps_memory *m)
{
    pool->m = m;
    ps_advance(&pool->meeting, &pool->runs);
    part_of(pool, 0);
}
