/* OpenCL C: elements of y in a work-item's own memory, whole vectors of bf16. */
PS_INLINE ps_vec ps_y_load(const uint16_t *p, int lanes)
{
    return (void)lanes, ps_of_bf16(PS_PASTE(vload, PS_LANES)(0, p));
}
PS_INLINE void ps_y_store(uint16_t *p, ps_vec x, int lanes)
{
    (void)lanes, PS_PASTE(vstore, PS_LANES)(ps_to_bf16(x), 0, p);
}
