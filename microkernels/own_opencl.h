/* OpenCL C: elements of y in a work-item's own memory; no function ends sums. */
#define PS_CALL(activation, x, vecs) ((void)0)
PS_INLINE ps_vec ps_y_load(const float *p, int lanes)
{
    return lanes == PS_LANES ? ps_load(p) : ps_load_first(p, lanes);
}
PS_INLINE void ps_y_store(float *p, ps_vec x, int lanes)
{
    if (lanes == PS_LANES)
        ps_store(p, x);
    else
        ps_store_first(p, x, lanes);
}
