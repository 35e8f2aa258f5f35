/* Relaxed SIMD of WebAssembly: x * y + z as one operation, which an engine rounds once or twice. */
#define ps_fma(x, y, z)                                                                            \
    ((ps_vec)wasm_f32x4_relaxed_madd((v128_t)(x), (v128_t)(y), (v128_t)(z)))
