/* x holds s8. */
typedef int8_t ps_x;
enum { PS_X_SIGNED = 1 };
PS_INLINE ps_int ps_x_int(const ps_x *p, int lanes) { return ps_load_s8(p, lanes); }
/* Numbers as 32 bits a lane, and back. */
PS_INLINE ps_vec ps_x_bits(const ps_x *p, int lanes) { return ps_as_real(ps_x_int(p, lanes)); }
PS_INLINE void ps_x_store(ps_x *p, ps_vec x, int lanes) { ps_store_s8(p, ps_as_int(x), lanes); }
