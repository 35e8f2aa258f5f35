/* Where threads wait for each other: spinning for a while, then asleep. */
enum { TURNS = 64 * PS_SPINS }; /* of 0.3 to 1 ns: no instruction lets a core pause */
typedef struct {
    atomic_uint arrived, sleepers;
    int awake; /* the first thread is one of a page, which may not sleep */
    char apart[64]; /* of the line that waiting threads read */
    atomic_uint turn;
    atomic_int failed; /* a worker that comes no more, or 0 */
} ps_meeting;

/* Returns when the word is another one. */
static void ps_sleep(ps_meeting *at, atomic_uint *word, unsigned old, int64_t thread)
{
    const int awake = !thread && at->awake;
    for (int i = 0; awake || i < TURNS; i += !awake)
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
    atomic_fetch_add(&at->sleepers, 1);
    while (atomic_load(word) == old)
        (void)__builtin_wasm_memory_atomic_wait32((int *)word, (int)old, -1);
    atomic_fetch_sub(&at->sleepers, 1);
}

/* A thread that waits for one that has failed is to fail, too: it traps. */
static void ps_check(ps_meeting *at)
{
    if (atomic_load(&at->failed))
        __builtin_trap();
}

/* Returns when the word is another one. Whoever fails says so before it moves the word. */
static void ps_await(ps_meeting *at, atomic_uint *word, unsigned old, int64_t thread)
{
    ps_check(at);
    ps_sleep(at, word, old, thread);
    ps_check(at);
}

/* The word moves on: whoever awaits it sees it, or counts among the sleepers. */
static void ps_advance(ps_meeting *at, atomic_uint *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&at->sleepers))
        (void)__builtin_wasm_memory_atomic_notify((int *)word, @COUNT@);
}
