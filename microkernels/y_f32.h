/* y and the residual hold f32. */
typedef float ps_y;
PS_INLINE ps_vec ps_y_load(const ps_y *p, int lanes)
{
    return lanes == PS_LANES ? ps_load(p) : ps_load_first(p, lanes);
}
PS_INLINE void ps_y_store(ps_y *p, ps_vec x, int lanes)
{
    if (lanes == PS_LANES)
        ps_store(p, x);
    else
        ps_store_first(p, x, lanes);
}
/* Past the caches, where y holds whole vectors of 32 bits. */
enum { PS_Y_STREAM = 1 };
PS_INLINE void ps_y_stream(ps_y *p, const ps_vec *x) { ps_stream(p, *x); }
/* Up to PS_Y_WIDE whole vectors at once. */
enum { PS_Y_WIDE = 1 };
PS_INLINE void ps_y_store_wide(ps_y *p, const ps_vec *x, int count)
{
    ps_y_store(p, *x, count * PS_LANES);
}
