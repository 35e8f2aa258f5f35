/* Lanes of a vector that lie side by side in memory, where others have no place. */

/* The floats from p on in the lanes whose bit is set; 0 in the others. */
PS_INLINE ps_vec ps_load_lanes(const float *p, uint32_t lanes)
{
    _Alignas(64) float part[PS_LANES] = {0};
    for (int i = 0; i < PS_LANES; ++i)
        if (lanes >> i & 1)
            part[i] = *p++;
    return ps_load(part);
}

/* The lanes whose bit is set, from p on. */
PS_INLINE void ps_store_lanes(float *p, ps_vec x, uint32_t lanes)
{
    _Alignas(64) float part[PS_LANES];
    ps_store(part, x);
    for (int i = 0; i < PS_LANES; ++i)
        if (lanes >> i & 1)
            *p++ = part[i];
}
