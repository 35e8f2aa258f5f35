/* CPUs without vectors, as most microcontrollers: a vector is one number, and sums stay in registers,
 * where compilers keep vectors of several numbers in memory. */
#define PS_INLINE static inline __attribute__((always_inline, unused))
#define PS_CPU_OK() 1

/* A number that is in a register here, if the compiler likes. */
#define PS_SETTLE(x) ((void)(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND(x) __asm__ volatile("" : "+m"(x))

enum { PS_LANES = 1, PS_REGISTERS = 32 };
typedef float ps_vec;

PS_INLINE ps_vec ps_zero(void) { return 0; }
PS_INLINE ps_vec ps_splat(float x) { return x; }
PS_INLINE ps_vec ps_load(const float *p) { return *p; }
PS_INLINE void ps_store(float *p, ps_vec x) { *p = x; }
/* No portable way past the caches. */
PS_INLINE void ps_stream(float *p, ps_vec x) { *p = x; }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes) { return lanes > 0 ? *p : 0; }
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    return from <= 0 && to > 0 ? *p : 0;
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    if (lanes > 0)
        *p = x;
}
#if defined(__FP_FAST_FMAF) /* where that is an instruction */
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return __builtin_fmaf(x, y, z); }
#else
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return x * y + z; }
#endif
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return x + y; }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return x * y; }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y) { return x > y ? x : y; }
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y) { return x < y ? x : y; }
/* What moves lanes moves none: there is one. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d) { return (void)d, x; }
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y) { (void)x, (void)y; }
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n) { return n ? y : x; }
PS_INLINE void ps_transpose(ps_vec *x) { (void)x; }
