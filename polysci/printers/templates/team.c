@TEAM_TYPE@#include <stdatomic.h>

#ifndef PS_SPINS
#define PS_SPINS 4000 /* turns of waiting, 10 to 50 ns each, before a thread lets others run */
#endif

static inline void ps_pause(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

@WAITING@
/* Returns when all threads of a team have come here. */
static void ps_meet(const polysci_team *team)
{
    ps_meeting *at = team->meeting;
    const unsigned turn = atomic_load_explicit(&at->turn, memory_order_relaxed);
    if (atomic_fetch_add(&at->arrived, 1) + 1 < (unsigned)team->threads) {
        ps_await(at, &at->turn, turn, team->thread);
    } else {
        atomic_store_explicit(&at->arrived, 0, memory_order_relaxed);
        ps_advance(at, &at->turn);
    }
}

