/* CUDA C++ on the CPU: what a kernel's text needs to be compiled by g++ and run, block after block.
 *
 * The threads of a block are fibres.  Each runs until it waits at a barrier or ends; then the next
 * one does, in an order that a launch chooses: forwards, backwards or shuffled, anew behind every
 * barrier.  What threads do to each other without a barrier between them comes out differently, or
 * as NaN: the memory of a block holds NaN when the block begins.  Barriers of different lines that
 * threads of a block wait at, and threads that end while others wait, end the process. */
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define EMU_SHARED_SECTION /* the sanitizer guards arrays outside of sections of our own */
#else
#define EMU_SHARED_SECTION __attribute__((section("emu_shared")))
#endif

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define EMU_ACQUIRE(place) __tsan_acquire(&(place))
#define EMU_RELEASE(place) __tsan_release(&(place))
/* Another stack, and no order between what was done on both. */
#define EMU_SWITCH(fibre) __tsan_switch_to_fiber(fibre, __tsan_switch_to_fiber_no_sync)
#define EMU_STACK_HERE() __tsan_get_current_fiber()
#define EMU_NEW_STACK() __tsan_create_fiber(0)
extern "C" void AnnotateIgnoreReadsBegin(const char *, int), AnnotateIgnoreReadsEnd(const char *, int);
extern "C" void AnnotateIgnoreWritesBegin(const char *, int), AnnotateIgnoreWritesEnd(const char *, int);
/* Between both: what the emulation itself does, in any order. */
#define EMU_OWN_BEGIN() (AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0))
#define EMU_OWN_END() (AnnotateIgnoreReadsEnd("", 0), AnnotateIgnoreWritesEnd("", 0))
#else
#define EMU_OWN_BEGIN() ((void)0)
#define EMU_OWN_END() ((void)0)
#define EMU_ACQUIRE(place) ((void)0)
#define EMU_RELEASE(place) ((void)0)
#define EMU_SWITCH(fibre) ((void)(fibre))
#define EMU_STACK_HERE() nullptr
#define EMU_NEW_STACK() nullptr
#endif

#define __device__
#define __global__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static EMU_SHARED_SECTION
#define __syncthreads() emu::wait(__LINE__)
#define __fmaf_rn std::fmaf

static inline float __int_as_float(int bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

struct emu_places {
    unsigned x = 0, y = 0, z = 0;
};
static emu_places threadIdx, blockIdx, blockDim{1, 1, 1}, gridDim{1, 1, 1};

#ifndef __SANITIZE_ADDRESS__
extern "C" char __start_emu_shared[] __attribute__((weak));
extern "C" char __stop_emu_shared[] __attribute__((weak));
#endif

namespace emu {
enum Order { FORWARDS, BACKWARDS, SHUFFLED, ORDERS };
constexpr size_t STACK = 1 << 18;

struct Fibre {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK);
    void *fake = nullptr;    /* the sanitizer's, of addresses */
    void *stacked = nullptr; /* and of threads */
    int line = 0;            /* of the barrier at which it waits */
    unsigned passed = 0;     /* barriers */
    bool ended = false;
};

static std::vector<Fibre> fibres;
static ucontext_t scheduler;
static size_t current;
static void (*body)(void *);
static void *operands;
static void *scheduler_fake;
static void *scheduler_stacked;
/* What orders the threads of a block: its begin and its end, and barriers in turns, since some
 * threads come to the next one before others leave the last. */
static char began, done, barriers[2];
static const void *scheduler_bottom;
static size_t scheduler_size;

[[noreturn]] static inline void fail(const char *what, int line, int other)
{
    fprintf(stderr, "block %u: %s: line %d, line %d\n", blockIdx.x, what, line, other);
    abort();
}

/* From here to the scheduler; `keep` is where the sanitizer keeps this stack, null for an ended one. */
static inline void leave(Fibre &fibre, void **keep)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(keep, scheduler_bottom, scheduler_size);
    swapcontext(&fibre.context, &scheduler);
    __sanitizer_finish_switch_fiber(fibre.fake, nullptr, nullptr);
#else
    (void)keep;
    EMU_SWITCH(scheduler_stacked);
    swapcontext(&fibre.context, &scheduler);
#endif
}

static inline void wait(int line)
{
    EMU_OWN_BEGIN();
    Fibre &fibre = fibres[current];
    char &barrier = barriers[fibre.passed++ % 2];
    fibre.line = line;
    EMU_RELEASE(barrier);
    leave(fibre, &fibre.fake);
    EMU_ACQUIRE(barrier);
    EMU_OWN_END();
}

static void begin()
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
    EMU_ACQUIRE(began);
    body(operands);
    EMU_RELEASE(done);
    EMU_OWN_BEGIN();
    fibres[current].ended = true;
    leave(fibres[current], nullptr);
}

/* Run a thread of the block until it waits or ends. */
static inline void resume(size_t thread)
{
    Fibre &fibre = fibres[thread];
    current = thread;
    threadIdx.x = (unsigned)thread;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&scheduler_fake, fibre.stack.data(), STACK);
    swapcontext(&scheduler, &fibre.context);
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#else
    EMU_SWITCH(fibre.stacked);
    swapcontext(&scheduler, &fibre.context);
#endif
}

static inline std::vector<size_t> places(size_t count, int order, uint32_t &seed)
{
    std::vector<size_t> all(count);
    for (size_t i = 0; i < count; ++i)
        all[i] = order == BACKWARDS ? count - 1 - i : i;
    for (size_t i = count; order == SHUFFLED && i > 1; --i) {
        seed = seed * 1664525u + 1013904223u; /* Numerical Recipes */
        std::swap(all[i - 1], all[(seed >> 8) % i]);
    }
    return all;
}

static inline void spoil_shared()
{
#ifndef __SANITIZE_ADDRESS__
    if (__start_emu_shared)
        memset(__start_emu_shared, 0xff, (size_t)(__stop_emu_shared - __start_emu_shared));
#endif
}

static inline void run_block(size_t threads, int order, uint32_t &seed)
{
    EMU_OWN_BEGIN();
    fibres.resize(threads);
    spoil_shared();
    for (Fibre &fibre : fibres) {
        fibre.ended = false, fibre.fake = nullptr, fibre.passed = 0;
        if (!fibre.stacked)
            fibre.stacked = EMU_NEW_STACK();
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = STACK;
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, begin, 0);
    }
    scheduler_stacked = EMU_STACK_HERE();
    EMU_RELEASE(began);
    while (!fibres[0].ended) {
        for (size_t thread : places(threads, order, seed))
            resume(thread);
        for (const Fibre &fibre : fibres) {
            if (fibre.ended != fibres[0].ended)
                fail("threads end while others wait", fibres[0].line, fibre.line);
            if (!fibre.ended && fibre.line != fibres[0].line)
                fail("threads wait at two barriers", fibres[0].line, fibre.line);
        }
    }
    EMU_ACQUIRE(done);
    EMU_OWN_END();
}

template <class Parameter>
Parameter argument(int64_t bits)
{
    Parameter value;
    static_assert(sizeof value == sizeof bits);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class... Parameters>
constexpr size_t count(void (*)(Parameters...))
{
    return sizeof...(Parameters);
}

template <class... Parameters>
struct Call {
    void (*kernel)(Parameters...);
    const int64_t *arguments;

    template <size_t... At>
    void apply(std::index_sequence<At...>) const
    {
        kernel(argument<Parameters>(arguments[At])...);
    }
    static void run(void *call)
    {
        static_cast<Call *>(call)->apply(std::index_sequence_for<Parameters...>());
    }
};

/* A launch of `blocks` blocks of so many threads; each argument is a number or an address. */
template <class... Parameters>
void launch(void (*kernel)(Parameters...), int64_t blocks, int64_t threads, int order,
            const int64_t *arguments)
{
    Call<Parameters...> call{kernel, arguments};
    uint32_t seed = 1;
    body = Call<Parameters...>::run, operands = &call;
    gridDim.x = (unsigned)blocks, blockDim.x = (unsigned)threads;
    for (size_t block : places((size_t)blocks, order, seed)) {
        blockIdx.x = (unsigned)block;
        run_block((size_t)threads, order, seed);
    }
}
} // namespace emu

#define EMU_KERNEL(name)                                                                           \
    extern "C" const size_t emu_##name##_count = emu::count(name);                                 \
    extern "C" void emu_##name(int64_t blocks, int64_t threads, int order, const int64_t *arguments) \
    {                                                                                              \
        emu::launch(name, blocks, threads, order, arguments);                                      \
    }
