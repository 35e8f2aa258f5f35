/* SIMD of WebAssembly: number k of eight of 4 bits in each lane, as f32. */
PS_INLINE ps_vec ps_nibble_s4(ps_int x, int k)
{
    return ps_to_real((ps_int)wasm_i32x4_shr(wasm_i32x4_shl((v128_t)x, 28 - 4 * k), 28));
}
PS_INLINE ps_vec ps_nibble_u4(ps_int x, int k)
{
    return ps_to_real((ps_int)wasm_u32x4_shr((v128_t)x, 4 * k) & 15);
}
