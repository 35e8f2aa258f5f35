/* x holds f16. */
typedef uint16_t ps_x;
#define PS_X_NAME "f16"
PS_SCALAR float ps_x_value(ps_x x) { return ps_f16_value(x); }
PS_INLINE ps_vec ps_x_splat(const ps_x *p) { return ps_splat_f16(p); }
PS_INLINE ps_vec ps_x_real(const ps_x *p, int lanes) { return ps_load_f16(p, lanes); }
/* Numbers as 32 bits a lane, and back. */
PS_INLINE ps_vec ps_x_bits(const ps_x *p, int lanes) { return ps_x_real(p, lanes); }
PS_INLINE void ps_x_store(ps_x *p, ps_vec x, int lanes) { ps_store_f16(p, x, lanes); }
enum { PS_X_PAIRS = 0 };
PS_INLINE void ps_x_pair(const ps_x *p, int lanes, ps_vec *even, ps_vec *odd)
{
    *even = ps_x_real(p, lanes < PS_LANES ? lanes : PS_LANES), *odd = ps_zero();
}
PS_INLINE void ps_x_interleave(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
