/* y and the residual hold u8; in a ps_vec its bits are whole numbers. */
typedef uint8_t ps_y;
PS_INLINE ps_vec ps_y_load(const ps_y *p, int lanes)
{
    return ps_as_real(ps_load_u8(p, lanes));
}
PS_INLINE void ps_y_store(ps_y *p, ps_vec x, int lanes) { ps_store_u8(p, ps_as_int(x), lanes); }
/* 8-bit results never go past the caches. */
enum { PS_Y_STREAM = 1 };
PS_INLINE void ps_y_stream(ps_y *p, const ps_vec *x) { ps_y_store(p, *x, PS_LANES); }
enum { PS_Y_WIDE = 1, PS_Y_LEAST = 0, PS_Y_MOST = UINT8_MAX };
PS_INLINE void ps_y_store_wide(ps_y *p, const ps_vec *x, int count)
{
    ps_y_store(p, *x, count * PS_LANES);
}
/* PS_8BIT_WIDE vectors, narrowed together: the first used[i] lanes of x[i] go to to[i].  `together`
 * of them lie side by side. */
PS_INLINE void ps_y_store_all(ps_y *const *to, const ps_vec *x, const int *used, int together)
{
    ps_store_u8_all(to, x, used, together);
}
