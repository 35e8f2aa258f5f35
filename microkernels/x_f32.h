/* x holds f32. */
typedef float ps_x;
PS_SCALAR float ps_x_value(ps_x x) { return x; }
PS_INLINE ps_vec ps_x_splat(const ps_x *p) { return ps_splat(*p); }
PS_INLINE ps_vec ps_x_real(const ps_x *p, int lanes)
{
    return lanes == PS_LANES ? ps_load(p) : ps_load_first(p, lanes);
}
/* Numbers as 32 bits a lane, and back. */
PS_INLINE ps_vec ps_x_bits(const ps_x *p, int lanes) { return ps_x_real(p, lanes); }
PS_INLINE void ps_x_store(ps_x *p, ps_vec x, int lanes)
{
    if (lanes == PS_LANES)
        ps_store(p, x);
    else
        ps_store_first(p, x, lanes);
}
enum { PS_X_PAIRS = 0 };
PS_INLINE void ps_x_pair(const ps_x *p, int lanes, ps_vec *even, ps_vec *odd)
{
    *even = ps_x_real(p, lanes < PS_LANES ? lanes : PS_LANES), *odd = ps_zero();
}
PS_INLINE void ps_x_interleave(ps_vec *even, ps_vec *odd) { (void)even, (void)odd; }
