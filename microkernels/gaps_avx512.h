/* Lanes of a vector that lie side by side in memory, where others have no place. */

/* The floats from p on in the lanes whose bit is set; 0 in the others. */
PS_INLINE ps_vec ps_load_lanes(const float *p, uint32_t lanes)
{
    return _mm512_maskz_expand_ps((__mmask16)lanes, ps_load_first(p, __builtin_popcount(lanes)));
}

/* The lanes whose bit is set, from p on. */
PS_INLINE void ps_store_lanes(float *p, ps_vec x, uint32_t lanes)
{
    ps_store_first(p, _mm512_maskz_compress_ps((__mmask16)lanes, x), __builtin_popcount(lanes));
}
