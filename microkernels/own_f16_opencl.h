/* OpenCL C: elements of y in a work-item's own memory, whole vectors of f16. */
PS_INLINE ps_vec ps_y_load(const uint16_t *p, int lanes)
{
    return (void)lanes, PS_PASTE(vload_half, PS_LANES)(0, (const half *)p);
}
PS_INLINE void ps_y_store(uint16_t *p, ps_vec x, int lanes)
{
    (void)lanes, PS_PASTE(PS_PASTE(vstore_half, PS_LANES), _rte)(x, 0, (half *)p);
}
