/* Two 16-bit numbers a lane: 8-bit ones, widened, so that no sum of products overflows.  The first ones
 * of all lanes become a vector of 32 bits, and the second ones: A is a scalar operand then. */
typedef int16_t ps_b;
typedef struct {
    ps_int first, second;
} ps_wide;
enum { PS_WORD = 2, PS_HELD = 0 }; /* A comes from memory */
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
PS_INLINE ps_wide ps_wide_of(ps_int first, ps_int second)
{
    const ps_wide x = {first, second};
    return x;
}
PS_INLINE ps_wide ps_panel(const ps_b *p)
{
    const ps_int pairs = ps_int_load((const void *)p, PS_LANES);
    return ps_wide_of(pairs << 16 >> 16, pairs >> 16);
}
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    return sum + a.first * b.first + a.second * b.second;
}
