/* What every other header here uses. */
#include <stdint.h>

#define PS_KERNEL PS_TARGET __attribute__((noinline))
#define PS_SCALAR static inline __attribute__((unused))
/* A few instructions: part of every caller, also of one that is tuned for another CPU. */
#define PS_SMALL static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define PS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PS_UNROLL _Pragma("GCC unroll 64")
#endif
/* What lies in memory is loaded anew behind this.  In code for RISC-V compilers set the length of vectors
 * again behind every assembly, not behind such a fence. */
#if defined(__riscv)
#define PS_RELOAD() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#else
#define PS_RELOAD() __asm__ volatile("" : : : "memory")
#endif

/* An answer that never changes but takes long to get is kept: an entry asks on every call.  `kept`
 * is 0 before, then 1 for yes and 2 for no; threads that ask at the same time get the same. */
PS_SCALAR int ps_kept(int *kept, int (*ask)(void))
{
    int known = __atomic_load_n(kept, __ATOMIC_RELAXED);
    if (!known) {
        known = ask() ? 1 : 2;
        __atomic_store_n(kept, known, __ATOMIC_RELAXED);
    }
    return known == 1;
}

/* Integers, for any caller; they are divided by numbers above 0. */
PS_SMALL int64_t ps_least(int64_t x, int64_t y) { return x < y ? x : y; }
PS_SMALL int64_t ps_most(int64_t x, int64_t y) { return x > y ? x : y; }
PS_SMALL int64_t ps_floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && x < 0); }
PS_SMALL int64_t ps_ceil_div(int64_t x, int64_t y) { return x / y + (x % y > 0); }
PS_SMALL int ps_is_aligned(const void *p, uintptr_t bytes) { return (uintptr_t)p % bytes == 0; }

/* A number below 2^-126 costs an x86 core tens of cycles.  Runs take such numbers for 0, unless
 * PS_KEEP_DENORMALS is defined: bits 15 (results) and 6 (operands) of MXCSR, bit 24 of FPCR. */
#if defined(__SSE__) && !defined(PS_KEEP_DENORMALS)
enum { PS_FLUSH = 0x8040 };
PS_SCALAR uint64_t ps_mode(void) { return __builtin_ia32_stmxcsr(); }
PS_SCALAR void ps_set_mode(uint64_t mode) { __builtin_ia32_ldmxcsr((unsigned)mode); }
#elif defined(__aarch64__) && !defined(PS_KEEP_DENORMALS)
enum { PS_FLUSH = 1 << 24 };
PS_SCALAR uint64_t ps_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
PS_SCALAR void ps_set_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
enum { PS_FLUSH = 0 };
PS_SCALAR uint64_t ps_mode(void) { return 0; }
PS_SCALAR void ps_set_mode(uint64_t mode) { (void)mode; }
#endif

/* From here on denormals count as 0 in this thread; what it returns is for ps_restore_mode. */
PS_SCALAR uint64_t ps_flush_denormals(void)
{
    const uint64_t mode = ps_mode();
    if (~mode & PS_FLUSH)
        ps_set_mode(mode | PS_FLUSH);
    return mode;
}

/* The bits of PS_FLUSH as they were; exceptions that were raised meanwhile stay raised. */
PS_SCALAR void ps_restore_mode(uint64_t mode)
{
    if (~mode & PS_FLUSH)
        ps_set_mode((ps_mode() & ~(uint64_t)PS_FLUSH) | (mode & PS_FLUSH));
}
