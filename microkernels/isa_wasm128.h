/* SIMD of WebAssembly: 4 lanes of f32.  Engines on x86-64 keep 15 vectors in registers, and one for
 * themselves; a module that uses what an engine lacks does not start, so that nothing is asked here. */
#include <wasm_simd128.h>

#define PS_INLINE static inline __attribute__((always_inline, unused)) PS_TARGET
#define PS_CPU_OK() 1

/* A vector that is in a register here, whatever is done with it later. */
#define PS_SETTLE(x) __asm__ volatile("" : "+r"(x))
/* A product that is rounded here, whatever is added to it later. */
#define PS_ROUND PS_SETTLE

enum { PS_LANES = 4, PS_REGISTERS = 16 };
typedef float ps_vec __attribute__((vector_size(16)));

PS_INLINE ps_vec ps_zero(void) { return (ps_vec)wasm_f32x4_const(0, 0, 0, 0); }
PS_INLINE ps_vec ps_splat(float x) { return (ps_vec)wasm_f32x4_splat(x); }
PS_INLINE ps_vec ps_load(const float *p) { return (ps_vec)wasm_v128_load(p); }
PS_INLINE void ps_store(float *p, ps_vec x) { wasm_v128_store(p, (v128_t)x); }
/* There is no way past the caches. */
PS_INLINE void ps_stream(float *p, ps_vec x) { ps_store(p, x); }
static PS_KERNEL __attribute__((unused)) void ps_fence(void) {}
PS_INLINE ps_vec ps_load_first(const float *p, int lanes)
{
    if (lanes >= PS_LANES)
        return ps_load(p);
    if (lanes == 3)
        return (ps_vec)wasm_v128_load32_lane(p + 2, wasm_v128_load64_zero(p), 2);
    if (lanes == 2)
        return (ps_vec)wasm_v128_load64_zero(p);
    return lanes == 1 ? (ps_vec)wasm_v128_load32_zero(p) : ps_zero();
}
/* Lanes from `from` to before `to`; nothing else is read, and the other lanes are zero. */
PS_INLINE ps_vec ps_load_part(const float *p, int from, int to)
{
    v128_t x = (v128_t)ps_zero();
    if (from <= 0 && to > 0)
        x = wasm_v128_load32_lane(p, x, 0);
    if (from <= 1 && to > 1)
        x = wasm_v128_load32_lane(p + 1, x, 1);
    if (from <= 2 && to > 2)
        x = wasm_v128_load32_lane(p + 2, x, 2);
    if (from <= 3 && to > 3)
        x = wasm_v128_load32_lane(p + 3, x, 3);
    return (ps_vec)x;
}
PS_INLINE void ps_store_first(float *p, ps_vec x, int lanes)
{
    if (lanes >= PS_LANES)
        ps_store(p, x);
    else if (lanes >= 2)
        wasm_v128_store64_lane(p, (v128_t)x, 0);
    if (lanes == 3)
        wasm_v128_store32_lane(p + 2, (v128_t)x, 2);
    else if (lanes == 1)
        wasm_v128_store32_lane(p, (v128_t)x, 0);
}
PS_INLINE ps_vec ps_fma(ps_vec x, ps_vec y, ps_vec z) { return x * y + z; }
PS_INLINE ps_vec ps_add(ps_vec x, ps_vec y) { return x + y; }
PS_INLINE ps_vec ps_mul(ps_vec x, ps_vec y) { return x * y; }
/* These give their first operand where either is a NaN. */
PS_INLINE ps_vec ps_max(ps_vec x, ps_vec y)
{
    return (ps_vec)wasm_f32x4_pmax((v128_t)y, (v128_t)x);
}
PS_INLINE ps_vec ps_min(ps_vec x, ps_vec y)
{
    return (ps_vec)wasm_f32x4_pmin((v128_t)y, (v128_t)x);
}
/* x[i] lane j <-> x[j] lane i. */
PS_INLINE void ps_transpose(ps_vec *x)
{
    const ps_vec a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const ps_vec b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const ps_vec c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const ps_vec d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}
/* Lanes of x from n on, then the first n of y, 0 < n < 4. */
PS_INLINE ps_vec ps_shift(ps_vec x, ps_vec y, int n)
{
    return n == 1   ? __builtin_shufflevector(x, y, 1, 2, 3, 4)
           : n == 2 ? __builtin_shufflevector(x, y, 2, 3, 4, 5)
                    : __builtin_shufflevector(x, y, 3, 4, 5, 6);
}
/* The even elements of both, the first of them first, and the odd ones. */
PS_INLINE void ps_even_odd(ps_vec *x, ps_vec *y)
{
    const ps_vec a = *x, b = *y;
    *x = __builtin_shufflevector(a, b, 0, 2, 4, 6);
    *y = __builtin_shufflevector(a, b, 1, 3, 5, 7);
}
/* Lane i of the result is lane i ^ d of x; d is 1 or 2. */
PS_INLINE ps_vec ps_swap(ps_vec x, int d)
{
    return d == 1 ? __builtin_shufflevector(x, x, 1, 0, 3, 2)
                  : __builtin_shufflevector(x, x, 2, 3, 0, 1);
}
