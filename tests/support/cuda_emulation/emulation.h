/* CUDA C++ on the CPU: what a kernel's text needs to be compiled by g++ and run, block after block.
 *
 * The threads of a block are fibres.  Each runs until it waits at a barrier or ends; then the next
 * one does, in an order that a launch chooses: forwards, backwards or shuffled, anew behind every
 * barrier.  What threads do to each other without a barrier between them comes out differently, or
 * as NaN: the memory of a block holds NaN when the block begins.  Barriers of different lines that
 * threads of a block wait at, and threads that end while others wait, end the process.
 *
 * What a warp does together its 32 fibres wait for each other with.  Copies that run beside a thread
 * happen as late as its waits permit; until then their place holds NaN. */
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
#define PS_EMULATED /* by these: */
#define ps_mma(low, high, a, b) emu::mma(low, high, a, b, PS_X_NAME, __LINE__)
#define ps_mma_words(low, high, a, b) emu::mma_words(low, high, a, b, PS_X_SIGNED, __LINE__)
#define ps_load_matrices(to, row) emu::load_matrices(to, row, false, __LINE__)
#define ps_load_columns(to, row) emu::load_matrices(to, row, true, __LINE__)
#define ps_dot_word(a, b, sum) emu::dot_word(a, b, sum, PS_X_SIGNED)
#define ps_copy_async emu::copy_async
#define ps_commit emu::commit
#define ps_await emu::await

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float __int_as_float(int bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int __float_as_int(float x)
{
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float ps_half_value(uint16_t bits)
{
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    return (float)x;
}

static inline uint16_t ps_half_of(float x)
{
    const _Float16 y = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &y, sizeof bits);
    return bits;
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
enum Wait { NOTHING, BARRIER, WARP, ENDED };
constexpr size_t STACK = 1 << 18, LANES = 32, CHUNK = 16;

struct Copy {
    void *to;
    const void *from;
    bool real;
};

/* What a lane gives to the others: a row of a matrix in memory, or its parts of two factors. */
struct Given {
    uint16_t row[8];
    uint32_t a[4], b[2];
};

struct Fibre {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK);
    void *fake = nullptr;    /* the sanitizer's, of addresses */
    void *stacked = nullptr; /* and of threads */
    int line = 0;            /* of the barrier, or of what its warp does, at which it waits */
    unsigned passed = 0;     /* barriers */
    Wait wait = NOTHING;
    std::vector<std::vector<Copy>> copies; /* groups of them; the last one is not complete */
    Given given[2];          /* of what the warp does now, and of what it did before */
    int turn = 0;
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

static inline void wait(int line, Wait kind = BARRIER)
{
    EMU_OWN_BEGIN();
    Fibre &fibre = fibres[current];
    fibre.line = line, fibre.wait = kind;
    if (kind == WARP) { /* no barrier of the block */
        leave(fibre, &fibre.fake);
        EMU_OWN_END();
        return;
    }
    char &barrier = barriers[fibre.passed++ % 2];
    EMU_RELEASE(barrier);
    leave(fibre, &fibre.fake);
    EMU_ACQUIRE(barrier);
    EMU_OWN_END();
}

/* Give something to the other lanes of the warp, and wait for what they give. */
static inline const Fibre *share(const Given &given, int line)
{
    Fibre &fibre = fibres[current];
    EMU_OWN_BEGIN();
    fibre.turn ^= 1;
    fibre.given[fibre.turn] = given;
    EMU_OWN_END();
    wait(line, WARP);
    return &fibres[current / LANES * LANES];
}

static inline void check_chunk(const void *place, int line)
{
    if ((uintptr_t)place % CHUNK)
        fail("an address is no multiple of 16", line, 0);
}

template <class Element>
void load_matrices(uint32_t *to, const Element *row, bool columns, int line)
{
    Given given{};
    check_chunk(row, line);
    memcpy(given.row, row, CHUNK);
    const Fibre *warp = share(given, line);
    const size_t lane = current % LANES, major = lane / 4, minor = lane % 4 * 2;
    const int turn = fibres[current].turn;
    EMU_OWN_BEGIN();
    for (size_t m = 0; m < 4; ++m) {
        uint32_t pair[2];
        for (size_t e = 0; e < 2; ++e)
            pair[e] = columns ? warp[8 * m + minor + e].given[turn].row[major]
                              : warp[8 * m + major].given[turn].row[minor + e];
        to[m] = pair[0] | pair[1] << 16;
    }
    EMU_OWN_END();
}

static inline float half_of(uint32_t pair, size_t at, bool bf16)
{
    const uint16_t bits = (uint16_t)(pair >> 16 * at);
    return bf16 ? __int_as_float((int)((uint32_t)bits << 16)) : ps_half_value(bits);
}

/* Sums of products of words in the registers of lanes, `each` numbers a word: PTX ISA, fragments of
 * mma.m16n8k16 and mma.m16n8k32.  `add` takes a sum, the words of both factors, a place in them. */
template <class Sums, class Add>
void add_fragments(Sums *low, Sums *high, const uint32_t *a, const uint32_t *b, size_t each, Add add,
                   int line)
{
    Given given{};
    memcpy(given.a, a, sizeof given.a), memcpy(given.b, b, sizeof given.b);
    const Fibre *warp = share(given, line);
    const size_t lane = current % LANES, half = 4 * each;
    const int turn = fibres[current].turn;
    EMU_OWN_BEGIN();
    for (size_t i = 0; i < 2; ++i)
        for (size_t j = 0; j < 2; ++j)
            for (size_t k = 0; k < 2 * half; ++k) {
                const Given &left = warp[lane / 4 * 4 + k % half / each].given[turn];
                const Given &right = warp[(lane % 4 * 2 + j) * 4 + k % half / each].given[turn];
                add((i ? high : low)->lane[j], left.a[i + k / half * 2], right.b[k / half], k % each);
            }
    EMU_OWN_END();
}

template <class Sums>
void mma(Sums *low, Sums *high, const uint32_t *a, const uint32_t *b, const char *type, int line)
{
    const bool bf16 = !strcmp(type, "bf16");
    const auto add = [bf16](float &sum, uint32_t x, uint32_t y, size_t at) {
        sum += half_of(x, at, bf16) * half_of(y, at, bf16);
    };
    add_fragments(low, high, a, b, 2, add, line);
}

template <class Sums>
void mma_words(Sums *low, Sums *high, const uint32_t *a, const uint32_t *b, bool is_signed, int line)
{
    const auto add = [is_signed](int32_t &sum, uint32_t x, uint32_t y, size_t at) {
        const uint32_t own = x >> 8 * at;
        const int32_t factor = is_signed ? (int8_t)own : (uint8_t)own;
        sum = (int32_t)((uint32_t)sum + (uint32_t)(factor * (int8_t)(y >> 8 * at)));
    };
    add_fragments(low, high, a, b, 4, add, line);
}

/* The four products of 8-bit numbers of two words: PTX ISA, dp4a. */
static inline int32_t dot_word(uint32_t a, int32_t b, int32_t sum, bool is_signed)
{
    for (int at = 0; at < 32; at += 8) {
        const int32_t left = is_signed ? (int8_t)(a >> at) : (uint8_t)(a >> at);
        sum = (int32_t)((uint32_t)sum + (uint32_t)(left * (int8_t)(b >> at)));
    }
    return sum;
}

template <class To, class From>
void copy_async(To *to, const From *from, int real)
{
    check_chunk(to, __LINE__);
    if (real)
        check_chunk(from, __LINE__);
    memset(to, 0xff, CHUNK);
    fibres[current].copies.back().push_back({to, from, real != 0});
}

static inline void commit() { fibres[current].copies.emplace_back(); }

static inline void await(size_t pending)
{
    auto &copies = fibres[current].copies;
    for (; copies.size() > pending + 1; copies.erase(copies.begin()))
        for (const Copy &copy : copies.front())
            if (copy.real)
                memcpy(copy.to, copy.from, CHUNK);
            else
                memset(copy.to, 0, CHUNK);
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
    fibres[current].wait = ENDED;
    leave(fibres[current], nullptr);
}

/* Run a thread of the block until it waits or ends. */
static inline void resume(size_t thread)
{
    Fibre &fibre = fibres[thread];
    current = thread;
    fibre.wait = NOTHING;
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

/* Whether lanes of a warp have come to what it does, at which all must then wait. */
static inline bool meets(size_t first)
{
    const Fibre &own = fibres[first];
    for (size_t lane = 1; lane < LANES && first + lane < fibres.size(); ++lane) {
        const Fibre &other = fibres[first + lane];
        if ((own.wait == WARP) != (other.wait == WARP) || (own.wait == WARP && own.line != other.line))
            fail("lanes of a warp part", own.line, other.line);
    }
    return own.wait == WARP;
}

/* Run threads until all of them wait at a barrier or have ended. */
static inline void run_to_barrier(size_t threads, int order, uint32_t &seed)
{
    std::vector<bool> runs(threads, true);
    for (bool any = true; any;) {
        for (size_t thread : places(threads, order, seed))
            if (runs[thread])
                resume(thread);
        any = false;
        for (size_t thread = 0; thread < threads; ++thread) {
            runs[thread] = thread % LANES ? runs[thread - 1] : meets(thread);
            any |= runs[thread];
        }
    }
}

static inline void run_block(size_t threads, int order, uint32_t &seed)
{
    EMU_OWN_BEGIN();
    fibres.resize(threads);
    spoil_shared();
    for (Fibre &fibre : fibres) {
        fibre.wait = NOTHING, fibre.fake = nullptr, fibre.passed = 0;
        fibre.copies.assign(1, {}), fibre.turn = 0;
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
    while (fibres[0].wait != ENDED) {
        run_to_barrier(threads, order, seed);
        for (const Fibre &fibre : fibres) {
            if (fibre.wait != fibres[0].wait)
                fail("threads end while others wait", fibres[0].line, fibre.line);
            if (fibre.wait == BARRIER && fibre.line != fibres[0].line)
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
