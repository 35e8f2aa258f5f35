/* Any CPU: vectors of 4 f32 lanes that the compiler maps to whatever the machine has. */
#define PS_INLINE static inline __attribute__((always_inline, unused))
#define PS_CPU_OK() 1

/* A vector that is in a register here, if the compiler likes. */
#define PS_SETTLE(x) ((void)(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND(x) __asm__ volatile("" : "+m"(x))

enum { PS_LANES = 4, PS_REGISTERS = 16 };
typedef float ps_vec __attribute__((vector_size(16)));

PS_INLINE ps_vec ps_zero(void) { return (ps_vec){0, 0, 0, 0}; }
PS_INLINE ps_vec ps_splat(float x) { return (ps_vec){x, x, x, x}; }
PS_INLINE ps_vec ps_load(const float *p)
{
    ps_vec x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
PS_INLINE void ps_store(float *p, ps_vec x) { __builtin_memcpy(p, &x, sizeof x); }
/* No portable way past the caches. */
PS_INLINE void ps_stream(float *p, ps_vec x) { ps_store(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    ps_vec x = ps_zero();
    for (int i = 0; i < lanes; ++i)
        x[i] = p[i];
    return x;
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    ps_vec x = ps_zero();
    for (int i = from; i < to; ++i)
        x[i] = p[i];
    return x;
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    for (int i = 0; i < lanes; ++i)
        p[i] = x[i];
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return x * y + z; }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return x + y; }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return x * y; }
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y)
{
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = x[i] > y[i] ? x[i] : y[i];
    return x;
}
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y)
{
    for (int i = 0; i < PS_LANES; ++i)
        x[i] = x[i] < y[i] ? x[i] : y[i];
    return x;
}
/* Lane i of the result is lane i ^ d of x; d is 1 or 2. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    ps_vec y = x;
    for (int i = 0; i < PS_LANES; ++i)
        y[i] = x[i ^ d];
    return y;
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec a = *x, b = *y;
    *x = (ps_vec){a[0], a[2], b[0], b[2]};
    *y = (ps_vec){a[1], a[3], b[1], b[3]};
}
/* Lanes of x from n on, then the first n of y, 0 < n < 4. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    ps_vec z = y;
    for (int i = 0; i < PS_LANES; ++i)
        z[i] = i + n < PS_LANES ? x[i + n] : y[i + n - PS_LANES];
    return z;
}
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    for (int i = 0; i < PS_LANES; ++i)
        for (int j = 0; j < i; ++j) {
            const float moved = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = moved;
        }
}
