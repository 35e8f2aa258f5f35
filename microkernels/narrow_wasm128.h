/* SIMD of WebAssembly: 32-bit whole numbers, and narrow ones in memory. */

/* Whole numbers of 32 bits. */
typedef int32_t ps_int __attribute__((vector_size(16)));

PS_INLINE ps_int ps_int_splat(int32_t x) { return (ps_int)wasm_i32x4_splat(x); }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes)
{
    return (ps_int)ps_load_first((const float *)(const void *)p, lanes);
}
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes)
{
    ps_store_first((float *)(void *)p, (ps_vec)x, lanes);
}
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return x + y; }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return x ^ y; }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y)
{
    return (ps_int)wasm_i32x4_max((v128_t)x, (v128_t)y);
}
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y)
{
    return (ps_int)wasm_i32x4_min((v128_t)x, (v128_t)y);
}
/* To the nearest, ties to even; beyond s32 the nearest s32, and 0 for a NaN. */
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    return (ps_int)wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)x));
}
PS_INLINE ps_vec ps_to_real(ps_int x) { return (ps_vec)wasm_f32x4_convert_i32x4((v128_t)x); }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return (ps_vec)x; }
PS_INLINE ps_int ps_as_int(ps_vec x) { return (ps_int)x; }

/* Narrow numbers in memory: the first `lanes`, zeros behind them. */
PS_INLINE v128_t ps_halves(const uint16_t *p, int lanes)
{
    if (lanes >= PS_LANES)
        return wasm_v128_load64_zero(p);
    v128_t x = wasm_i32x4_const(0, 0, 0, 0);
    if (lanes > 0)
        x = wasm_v128_load16_lane(p, x, 0);
    if (lanes > 1)
        x = wasm_v128_load16_lane(p + 1, x, 1);
    return lanes > 2 ? wasm_v128_load16_lane(p + 2, x, 2) : x;
}
PS_INLINE void ps_put_halves(uint16_t *p, v128_t x, int lanes)
{
    if (lanes >= PS_LANES) {
        wasm_v128_store64_lane(p, x, 0);
        return;
    }
    if (lanes > 0)
        wasm_v128_store16_lane(p, x, 0);
    if (lanes > 1)
        wasm_v128_store16_lane(p + 1, x, 1);
    if (lanes > 2)
        wasm_v128_store16_lane(p + 2, x, 2);
}
PS_INLINE v128_t ps_bytes(const uint8_t *p, int lanes)
{
    if (lanes >= PS_LANES)
        return wasm_v128_load32_zero(p);
    v128_t x = wasm_i32x4_const(0, 0, 0, 0);
    if (lanes > 0)
        x = wasm_v128_load8_lane(p, x, 0);
    if (lanes > 1)
        x = wasm_v128_load8_lane(p + 1, x, 1);
    return lanes > 2 ? wasm_v128_load8_lane(p + 2, x, 2) : x;
}
PS_INLINE void ps_put_bytes(uint8_t *p, v128_t x, int lanes)
{
    if (lanes >= PS_LANES) {
        wasm_v128_store32_lane(p, x, 0);
        return;
    }
    if (lanes > 0)
        wasm_v128_store8_lane(p, x, 0);
    if (lanes > 1)
        wasm_v128_store8_lane(p + 1, x, 1);
    if (lanes > 2)
        wasm_v128_store8_lane(p + 2, x, 2);
}
/* The low halves of all lanes, side by side. */
PS_INLINE v128_t ps_low_halves(v128_t x)
{
    return wasm_i16x8_shuffle(x, x, 0, 2, 4, 6, 0, 2, 4, 6);
}

PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    return (ps_vec)wasm_i32x4_shl(wasm_u32x4_extend_low_u16x8(ps_halves(p, lanes)), 16);
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    const ps_int bits = ps_as_int(x), odd = (bits >> 16) & 1;
    const ps_int near = (ps_int)wasm_i32x4_add((v128_t)(odd + 0x7fff), (v128_t)bits);
    const v128_t y = wasm_v128_bitselect((v128_t)near, (v128_t)(bits | 0x400000),
                                         wasm_f32x4_eq((v128_t)x, (v128_t)x));
    ps_put_halves(p, ps_low_halves(wasm_u32x4_shr(y, 16)), lanes);
}
/* The same as ps_f16_value, lane by lane. */
PS_INLINE ps_vec ps_f16_values(v128_t halves)
{
    const ps_int x = (ps_int)wasm_u32x4_extend_low_u16x8(halves);
    const ps_int size = (x & 0x7fff) << 13, sign = (x & 0x8000) << 16;
    const ps_vec small = ps_as_real(size + 0x38800000) - ps_splat(0x1p-14f);
    const ps_int quiet = (size > 0x7c00 << 13) & 0x400000;
    const ps_int whole = size + 0x38000000, endless = (size | 0x7f800000) | quiet;
    const ps_int is_small = size < 0x400 << 13, is_endless = size >= 0x7c00 << 13;
    const ps_int finite = (ps_as_int(small) & is_small) | (whole & ~is_small);
    return ps_as_real(sign | (endless & is_endless) | (finite & ~is_endless));
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    return ps_f16_values(ps_halves(p, lanes));
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    for (int i = 0; i < lanes && i < PS_LANES; ++i)
        p[i] = ps_f16_of(x[i]);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_splat(ps_f16_value(*p)); }
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    return (ps_int)wasm_u32x4_extend_low_u16x8(wasm_u16x8_extend_low_u8x16(ps_bytes(p, lanes)));
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    const v128_t bytes = ps_bytes((const uint8_t *)p, lanes);
    return (ps_int)wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(bytes));
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    const v128_t halves = wasm_i16x8_narrow_i32x4((v128_t)x, (v128_t)x);
    ps_put_bytes(p, wasm_u8x16_narrow_i16x8(halves, halves), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    const v128_t halves = wasm_i16x8_narrow_i32x4((v128_t)x, (v128_t)x);
    ps_put_bytes((uint8_t *)p, wasm_i8x16_narrow_i16x8(halves, halves), lanes);
}
/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    return z + (ps_int)wasm_i32x4_dot_i16x8((v128_t)x, (v128_t)y);
}
