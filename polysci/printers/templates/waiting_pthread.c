/* Where threads wait for each other: spinning for a while, then asleep. */
typedef struct {
    atomic_uint arrived, sleepers;
    char apart[64]; /* of the line that waiting threads read */
    atomic_uint turn;
    pthread_mutex_t lock;
    pthread_cond_t moved;
} ps_meeting;

/* Returns when the word is another one. */
static void ps_await(ps_meeting *at, atomic_uint *word, unsigned old)
{
    for (int i = 0; i < PS_SPINS; ++i, ps_pause())
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
