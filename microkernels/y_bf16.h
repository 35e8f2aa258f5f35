/* y and the residual hold bf16. */
typedef uint16_t ps_y;
PS_INLINE ps_vec ps_y_load(const ps_y *p, int lanes)
{
    return ps_load_bf16(p, lanes);
}
PS_INLINE void ps_y_store(ps_y *p, ps_vec x, int lanes) { ps_store_bf16(p, x, lanes); }
/* Past the caches, where several vectors of them make a line. */
enum { PS_Y_STREAM = PS_16BIT_STREAM };
PS_INLINE void ps_y_stream(ps_y *p, const ps_vec *x) { ps_stream_bf16(p, x); }
/* Up to PS_Y_WIDE whole vectors at once. */
enum { PS_Y_WIDE = PS_BF16_WIDE };
PS_INLINE void ps_y_store_wide(ps_y *p, const ps_vec *x, int count) { ps_store_bf16_wide(p, x, count); }
