/* Two 16-bit numbers a lane, multiplied and added by one instruction; sums are exact. */
typedef int16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 1 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
/* Not the intrinsic: compilers copy its sum from register to register. */
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
