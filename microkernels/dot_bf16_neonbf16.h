/* Two bf16 a lane. BFDOT rounds the sum of a lane's two products, and what it adds them to, to odd
 * and takes denormals as zeros, but where the newer rules of the architecture are switched on. */
typedef uint16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 1 }; /* A takes a register */
PS_SCALAR ps_b ps_b_of(uint16_t w) { return w; }
/* Words of columns that lie in two rows, zeros below a row that lacks its partner; `real` of them
 * exist, `lanes` are stored. */
PS_INLINE void ps_pair(ps_b *to, const uint16_t *even, const uint16_t *odd, int real, int lanes)
{
    if (real == PS_LANES && lanes == PS_LANES && odd) {
        const uint16x4_t low = vld1_u16(even), high = vld1_u16(odd);
        vst1q_u16(to, vcombine_u16(vzip1_u16(low, high), vzip2_u16(low, high)));
        return;
    }
    for (int j = 0; j < lanes; ++j) {
        to[2 * j] = j < real ? even[j] : 0;
        to[2 * j + 1] = j < real && odd ? odd[j] : 0;
    }
}
PS_INLINE ps_wide ps_panel(const ps_b *p) { return vreinterpretq_s32_u16(vld1q_u16(p)); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    return vbfdotq_f32(sum, vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b));
}
