#if defined __unix__ && __STDC_HOSTED__
#include <sched.h>
#define PS_YIELD() ((void)sched_yield())
#else
#define PS_YIELD() ps_pause()
#endif

/* Where threads wait for each other: spinning, after a while with the system's leave. */
typedef struct {
    atomic_uint arrived;
    char apart[64]; /* of the line that waiting threads read */
    atomic_uint turn;
} ps_meeting;

/* Returns when the word is another one. */
static void ps_await(ps_meeting *at, atomic_uint *word, unsigned old, int64_t thread)
{
    (void)at, (void)thread;
    for (int i = 0; i < PS_SPINS; ++i, ps_pause())
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
    while (atomic_load_explicit(word, memory_order_acquire) == old)
        PS_YIELD();
}

static void ps_advance(ps_meeting *at, atomic_uint *word)
{
    (void)at;
    atomic_fetch_add(word, 1);
}
