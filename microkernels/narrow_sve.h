/* SVE: 32-bit whole numbers, and narrow ones in memory, of which loads and stores convert the length. */

/* Whole numbers of 32 bits. */
typedef svint32_t ps_int __attribute__((arm_sve_vector_bits(PS_SVE_BITS)));

PS_INLINE ps_int ps_int_splat(int32_t x) { return svdup_n_s32(x); }
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes) { return svld1_s32(PS_BELOW(lanes), p); }
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes) { svst1_s32(PS_BELOW(lanes), p, x); }
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return svadd_s32_x(PS_ALL, x, y); }
PS_INLINE ps_int ps_int_xor(ps_int x, ps_int y) { return sveor_s32_x(PS_ALL, x, y); }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return svmax_s32_x(PS_ALL, x, y); }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return svmin_s32_x(PS_ALL, x, y); }
/* To the nearest, ties to even; beyond s32 the nearest s32, and 0 for a NaN. */
PS_INLINE ps_int ps_to_int(ps_vec x) { return svcvt_s32_f32_x(PS_ALL, svrintn_f32_x(PS_ALL, x)); }
PS_INLINE ps_vec ps_to_real(ps_int x) { return svcvt_f32_s32_x(PS_ALL, x); }
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return svreinterpret_f32_s32(x); }
PS_INLINE ps_int ps_as_int(ps_vec x) { return svreinterpret_s32_f32(x); }

/* Narrow numbers in memory: the first `lanes`, zeros behind them. */
PS_INLINE ps_vec ps_load_bf16(const uint16_t *p, int lanes)
{
    return svreinterpret_f32_u32(svlsl_n_u32_x(PS_ALL, svld1uh_u32(PS_BELOW(lanes), p), 16));
}
/* To the nearest, ties to even; a NaN becomes a quiet one. */
PS_INLINE void ps_store_bf16(uint16_t *p, ps_vec x, int lanes)
{
    const svuint32_t bits = svreinterpret_u32_f32(x);
    const svuint32_t odd = svand_n_u32_x(PS_ALL, svlsr_n_u32_x(PS_ALL, bits, 16), 1);
    const svuint32_t near = svadd_u32_x(PS_ALL, svadd_n_u32_x(PS_ALL, bits, 0x7fff), odd);
    const svuint32_t quiet = svorr_n_u32_x(PS_ALL, bits, 0x400000);
    const svuint32_t y = svsel_u32(svcmpuo_f32(PS_ALL, x, x), quiet, near);
    svst1h_u32(PS_BELOW(lanes), p, svlsr_n_u32_x(PS_ALL, y, 16));
}
PS_INLINE ps_vec ps_load_f16(const uint16_t *p, int lanes)
{
    const svuint32_t x = svld1uh_u32(PS_BELOW(lanes), p);
    return svcvt_f32_f16_x(PS_ALL, svreinterpret_f16_u32(x));
}
PS_INLINE void ps_store_f16(uint16_t *p, ps_vec x, int lanes)
{
    const svfloat16_t y = svcvt_f16_f32_x(PS_ALL, x);
    svst1h_u32(PS_BELOW(lanes), p, svreinterpret_u32_f16(y));
}
PS_INLINE ps_vec ps_splat_f16(const uint16_t *p)
{
    return svcvt_f32_f16_x(PS_ALL, svreinterpret_f16_u32(svdup_n_u32(*p)));
}
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes) { return svld1ub_s32(PS_BELOW(lanes), p); }
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes) { return svld1sb_s32(PS_BELOW(lanes), p); }
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    const svint32_t y = svmax_n_s32_x(PS_ALL, svmin_n_s32_x(PS_ALL, x, 255), 0);
    svst1b_u32(PS_BELOW(lanes), p, svreinterpret_u32_s32(y));
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    svst1b_s32(PS_BELOW(lanes), p, svmax_n_s32_x(PS_ALL, svmin_n_s32_x(PS_ALL, x, 127), -128));
}
