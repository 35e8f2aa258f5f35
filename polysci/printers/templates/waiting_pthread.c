#ifdef __linux__
int sched_getcpu(void); /* <sched.h> has it with _GNU_SOURCE alone */
#else
#define sched_getcpu() (-1)
#endif

/* Where threads wait for each other: spinning for a while, then asleep. */
enum { LOOK = 128 }; /* turns before a thread looks where the others run */
typedef struct {
    atomic_uint arrived, sleepers;
    atomic_int cpus[@COUNT@]; /* on which threads were seen last */
    char apart[64]; /* of the line that waiting threads read */
    atomic_uint turn;
    pthread_mutex_t lock;
    pthread_cond_t moved;
} ps_meeting;

/* Whether another thread was last seen on the CPU of this one. */
static int shares_cpu(ps_meeting *at, int64_t thread)
{
    const int cpu = sched_getcpu();
    int shared = 0;
    atomic_store_explicit(&at->cpus[thread], cpu, memory_order_relaxed);
    for (int64_t i = 0; i < @COUNT@; ++i)
        shared |= i != thread && atomic_load_explicit(&at->cpus[i], memory_order_relaxed) == cpu;
    return shared && cpu >= 0;
}

/* Returns when the word is another one. A thread that spins would keep the CPU from one that
 * shares it, which the system lets happen where other programs keep all CPUs busy. */
static void ps_await(ps_meeting *at, atomic_uint *word, unsigned old, int64_t thread)
{
    for (int i = 0; i < PS_SPINS && !(i == LOOK && shares_cpu(at, thread)); ++i, ps_pause())
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
    pthread_mutex_lock(&at->lock);
    atomic_fetch_add(&at->sleepers, 1);
    while (atomic_load(word) == old)
        pthread_cond_wait(&at->moved, &at->lock);
    atomic_fetch_sub(&at->sleepers, 1);
    pthread_mutex_unlock(&at->lock);
}

/* The word moves on: whoever awaits it sees it, or counts among the sleepers. */
static void ps_advance(ps_meeting *at, atomic_uint *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&at->sleepers)) {
        pthread_mutex_lock(&at->lock);
        pthread_cond_broadcast(&at->moved);
        pthread_mutex_unlock(&at->lock);
    }
}
