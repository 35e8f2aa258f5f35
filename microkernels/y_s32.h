/* y and the residual hold s32; in a ps_vec its bits are whole numbers. */
typedef int32_t ps_y;
PS_INLINE ps_vec ps_y_load(const ps_y *p, int lanes)
{
    return ps_as_real(ps_int_load(p, lanes));
}
PS_INLINE void ps_y_store(ps_y *p, ps_vec x, int lanes) { ps_int_store(p, ps_as_int(x), lanes); }
/* Past the caches, where y holds whole vectors of 32 bits. */
enum { PS_Y_STREAM = 1 };
PS_INLINE void ps_y_stream(ps_y *p, const ps_vec *x) { ps_stream((float *)p, *x); }
/* Up to PS_Y_WIDE whole vectors at once. */
enum { PS_Y_WIDE = 1 };
PS_INLINE void ps_y_store_wide(ps_y *p, const ps_vec *x, int count)
{
    ps_y_store(p, *x, count * PS_LANES);
}
