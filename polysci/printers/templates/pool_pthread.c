
@PLACING@
/* Threads of a context beside the one that runs it: they wait for its runs. */
enum { THREADS = @COUNT@ };
struct ps_pool;
typedef struct {
    struct ps_pool *pool;
    int64_t thread;
    pthread_t id;
} ps_worker;
typedef struct ps_pool {
    ps_meeting meeting;
    atomic_uint runs;   /* how many have begun */
    const ps_memory *m; /* of the last one; null: no more come */
    int started;
    ps_places places;
    ps_worker workers[THREADS - 1];
} ps_pool;

static void part_of(ps_pool *pool, int64_t thread)
{
    const polysci_team team = {thread, THREADS, ps_meet, &pool->meeting};
    _Alignas(64) ps_memory m = *pool->m;
    m.team = &team;
    shares_cpu(&pool->meeting, thread);
    share(&m);
    ps_meet(&team);
}

static void *worked(void *given)
{
    const ps_worker *worker = given;
    ps_pool *pool = worker->pool;
    take_place(&pool->places, (int)worker->thread - 1);
    for (unsigned run = 0;; ++run) {
        ps_await(&pool->meeting, &pool->runs, run, worker->thread);
        if (!run)
            leave_place(&pool->places);
        if (!pool->m)
            return 0;
        part_of(pool, worker->thread);
    }
}

static void run_together(ps_pool *pool, const ps_memory *m)
{
    pool->m = m;
    ps_advance(&pool->meeting, &pool->runs);
    part_of(pool, 0);
}

/* Whether all threads have started; signals of the process go to others. */
static int start_pool(ps_pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_mutex_init(&pool->meeting.lock, 0);
    pthread_cond_init(&pool->meeting.moved, 0);
    find_places(&pool->places);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool->started < THREADS - 1; ++pool->started) {
        ps_worker *worker = &pool->workers[pool->started];
        worker->pool = pool, worker->thread = pool->started + 1;
        if (pthread_create(&worker->id, 0, worked, worker))
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
    return pool->started == THREADS - 1;
}

static void end_pool(ps_pool *pool)
{
    pool->m = 0;
    ps_advance(&pool->meeting, &pool->runs);
    for (int i = 0; i < pool->started; ++i)
        pthread_join(pool->workers[i].id, 0);
    pthread_cond_destroy(&pool->meeting.moved);
    pthread_mutex_destroy(&pool->meeting.lock);
}
