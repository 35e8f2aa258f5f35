/* Two bf16 a lane. BFDOT rounds the sum of a lane's two products, and what it adds them to, to odd
 * and takes denormals as zeros, but where the newer rules of the architecture are switched on. */
typedef uint16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 1 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(uint16_t w) { return w; }
PS_INLINE ps_wide ps_panel(const ps_b *p) { return vreinterpretq_s32_u16(vld1q_u16(p)); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    return vbfdotq_f32(sum, vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b));
}
