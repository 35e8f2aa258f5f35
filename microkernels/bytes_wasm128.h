/* SIMD of WebAssembly: sum + the four unsigned numbers of each lane by the four signed ones of x. */
enum { PS_BYTES_WHOLE = 1 }; /* of 8 bits */
/* The first and the third number of each lane as 16-bit ones, and the other two. */
PS_INLINE ps_int ps_dot_bytes(ps_int w, ps_int x, ps_int sum)
{
    const v128_t w_odd = wasm_u16x8_shr((v128_t)w, 8), x_odd = wasm_i16x8_shr((v128_t)x, 8);
    const v128_t w_even = (v128_t)(w & 0xff00ff);
    const v128_t x_even = wasm_i16x8_shr(wasm_i16x8_shl((v128_t)x, 8), 8);
    const v128_t odd = wasm_i32x4_dot_i16x8(w_odd, x_odd);
    return sum + (ps_int)wasm_i32x4_add(wasm_i32x4_dot_i16x8(w_even, x_even), odd);
}
PS_INLINE ps_int ps_int_shift(ps_int x, int count)
{
    return (ps_int)wasm_i32x4_shl((v128_t)x, (uint32_t)count);
}
