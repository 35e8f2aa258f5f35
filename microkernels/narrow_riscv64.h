/* Vectors of RISC-V: 32-bit whole numbers, and narrow ones in memory. */

/* Whole numbers of 32 bits. */
typedef int32_t ps_int __attribute__((ext_vector_type(PS_LANES)));
/* Their bits, and what a lane of narrow numbers in memory holds. */
typedef uint32_t ps_bits __attribute__((ext_vector_type(PS_LANES)));
typedef int16_t ps_short __attribute__((ext_vector_type(PS_LANES)));
typedef uint16_t ps_half __attribute__((ext_vector_type(PS_LANES), aligned(2), may_alias));
typedef uint8_t ps_byte __attribute__((ext_vector_type(PS_LANES), aligned(1), may_alias));
typedef int8_t ps_signed_byte __attribute__((ext_vector_type(PS_LANES)));

PS_INLINE ps_int ps_int_splat(int32_t x) { return (ps_int)x; }
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
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return __builtin_elementwise_max(x, y); }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return __builtin_elementwise_min(x, y); }
/* To the nearest, ties to even; beyond s32 the last f32 within. */
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    const ps_vec within = ps_max(ps_min(x, ps_splat(0x1.fffffep30f)), ps_splat(-0x1p31f));
    return __builtin_convertvector(__builtin_elementwise_roundeven(within), ps_int);
}
PS_INLINE ps_vec ps_to_real(ps_int x) { return __builtin_convertvector(x, ps_vec); }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return (ps_vec)x; }
PS_INLINE ps_int ps_as_int(ps_vec x) { return (ps_int)x; }

/* Narrow numbers in memory: the first `lanes`, zeros behind them. */
PS_INLINE ps_half ps_halves(const uint16_t *p, int lanes)
{
    _Alignas(64) uint16_t x[PS_LANES];
    const vuint16m1_t zero = __riscv_vmv_v_x_u16m1(0, PS_LANES);
    if (lanes >= PS_LANES)
        return *(const ps_half *)(const void *)p;
    __riscv_vse16_v_u16m1(x, __riscv_vle16_v_u16m1_tu(zero, p, ps_count(lanes)), PS_LANES);
    return *(const ps_half *)(const void *)x;
}
PS_INLINE void ps_put_halves(uint16_t *p, ps_half x, int lanes)
{
    _Alignas(64) uint16_t all[PS_LANES];
    const size_t count = ps_count(lanes);
    if (lanes >= PS_LANES) {
        *(ps_half *)(void *)p = x;
        return;
    }
    *(ps_half *)(void *)all = x;
    __riscv_vse16_v_u16m1(p, __riscv_vle16_v_u16m1(all, count), count);
}
PS_INLINE ps_byte ps_bytes(const uint8_t *p, int lanes)
{
    _Alignas(64) uint8_t x[PS_LANES];
    const vuint8mf2_t zero = __riscv_vmv_v_x_u8mf2(0, PS_LANES);
    if (lanes >= PS_LANES)
        return *(const ps_byte *)(const void *)p;
    __riscv_vse8_v_u8mf2(x, __riscv_vle8_v_u8mf2_tu(zero, p, ps_count(lanes)), PS_LANES);
    return *(const ps_byte *)(const void *)x;
}
PS_INLINE void ps_put_bytes(uint8_t *p, ps_byte x, int lanes)
{
    _Alignas(64) uint8_t all[PS_LANES];
    const size_t count = ps_count(lanes);
    if (lanes >= PS_LANES) {
        *(ps_byte *)(void *)p = x;
        return;
    }
    *(ps_byte *)(void *)all = x;
    __riscv_vse8_v_u8mf2(p, __riscv_vle8_v_u8mf2(all, count), count);
}
PS_INLINE ps_bits ps_wide_halves(const uint16_t *p, int lanes)
{
    return __builtin_convertvector(ps_halves(p, lanes), ps_bits);
}
PS_INLINE void ps_put_low_halves(uint16_t *p, ps_bits x, int lanes)
{
    ps_put_halves(p, __builtin_convertvector(x, ps_half), lanes);
}

PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    return (ps_vec)(ps_wide_halves(p, lanes) << 16);
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    const ps_bits bits = (ps_bits)x, near = bits + 0x7fff + (bits >> 16 & 1);
    ps_put_low_halves(p, (x == x ? near : bits | 0x400000) >> 16, lanes);
}
/* The same as ps_f16_value, lane by lane. */
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    const ps_bits x = ps_wide_halves(p, lanes), size = (x & 0x7fff) << 13;
    const ps_bits small = (ps_bits)((ps_vec)(size + 0x38800000) - 0x1p-14f);
    const ps_bits quiet = size > 0x7c00 << 13 ? (ps_bits)0x7fc00000 : (ps_bits)0x7f800000;
    const ps_bits finite = size < 0x400 << 13 ? small : size + 0x38000000;
    return (ps_vec)((x & 0x8000) << 16 | (size < 0x7c00 << 13 ? finite : size | quiet));
}
/* The same as ps_f16_of. */
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    const ps_bits bits = (ps_bits)x, size = bits & 0x7fffffff;
    const ps_bits small = (ps_bits)((ps_vec)size + 0.5f) - 0x3f000000;
    const ps_bits whole = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    const ps_bits finite = size < 0x38800000 ? small : whole;
    const ps_bits endless = size > 0x7f800000 ? (size >> 13 & 0x3ff) | 0x7e00 : (ps_bits)0x7c00;
    ps_put_low_halves(p, (bits >> 16 & 0x8000) | (size < 0x477ff000 ? finite : endless), lanes);
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p) { return ps_splat(ps_f16_value(*p)); }
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes)
{
    return __builtin_convertvector(ps_bytes(p, lanes), ps_int);
}
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes)
{
    const ps_byte bytes = ps_bytes((const uint8_t *)p, lanes);
    return __builtin_convertvector((ps_signed_byte)bytes, ps_int);
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    const ps_int within = ps_int_max(ps_int_min(x, ps_int_splat(255)), ps_int_splat(0));
    ps_put_bytes(p, __builtin_convertvector(within, ps_byte), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    const ps_int within = ps_int_max(ps_int_min(x, ps_int_splat(127)), ps_int_splat(-128));
    ps_put_bytes((uint8_t *)p, __builtin_convertvector(within, ps_byte), lanes);
}
PS_INLINE ps_int ps_load_s16(const int16_t *p, int lanes)
{
    return __builtin_convertvector((ps_short)ps_halves((const void *)p, lanes), ps_int);
}
PS_INLINE void ps_store_s16(int16_t *p, ps_int x, int lanes)
{
    ps_put_low_halves((void *)p, (ps_bits)x, lanes);
}
