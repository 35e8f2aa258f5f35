/* Lanes of a vector that lie side by side in memory, where others have no place. */

/* How many of the lanes whose bit is set lie before each; before one whose bit is not set, all. */
PS_INLINE svuint32_t ps_places(uint32_t lanes)
{
    _Alignas(64) uint32_t places[PS_LANES];
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        places[i] = lanes >> i & 1 ? (uint32_t)__builtin_popcount(lanes & ((1u << i) - 1u)) : PS_LANES;
    return svld1_u32(PS_ALL, places);
}

/* The floats from p on in the lanes whose bit is set; 0 in the others. */
PS_INLINE ps_vec ps_load_lanes(const float *p, uint32_t lanes)
{
    return svtbl_f32(ps_load_first(p, __builtin_popcount(lanes)), ps_places(lanes));
}

/* The lanes whose bit is set, from p on. */
PS_INLINE void ps_store_lanes(float *p, ps_vec x, uint32_t lanes)
{
    const svuint32_t bit = svlsl_u32_x(PS_ALL, svdup_n_u32(1), svindex_u32(0, 1));
    const svbool_t used = svcmpne_n_u32(PS_ALL, svand_n_u32_x(PS_ALL, bit, lanes), 0);
    ps_store_first(p, svcompact_f32(used, x), __builtin_popcount(lanes));
}
