/* x holds bf16. */
typedef uint16_t ps_x;
#define PS_X_NAME "bf16"
PS_SCALAR float ps_x_value(ps_x x) { return ps_bf16_value(x); }
PS_INLINE ps_vec ps_x_splat(const ps_x *p) { return ps_splat(ps_bf16_value(*p)); }
PS_INLINE ps_vec ps_x_real(const ps_x *p, int lanes) { return ps_load_bf16(p, lanes); }
/* Numbers as 32 bits a lane, and back. */
PS_INLINE ps_vec ps_x_bits(const ps_x *p, int lanes) { return ps_x_real(p, lanes); }
PS_INLINE void ps_x_store(ps_x *p, ps_vec x, int lanes) { ps_store_bf16(p, x, lanes); }
enum { PS_X_PAIRS = PS_BF16_PAIRS };
PS_INLINE void ps_x_pair(const ps_x *p, int lanes, ps_vec *even, ps_vec *odd)
{
    ps_load_bf16_pair(p, lanes, even, odd);
}
PS_INLINE void ps_x_interleave(ps_vec *even, ps_vec *odd) { ps_interleave(even, odd); }
