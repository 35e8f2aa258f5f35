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
    svuint32_t words = svld1uh_u32(PS_BELOW(real), even);
    if (odd) {
        const svuint32_t high = svld1uh_u32(PS_BELOW(real), odd);
        words = svorr_u32_x(PS_ALL, words, svlsl_n_u32_x(PS_ALL, high, 16));
    }
    svst1_u32(PS_BELOW(lanes), (void *)to, words);
}
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum)
{
    return svbfdot_f32(sum, svreinterpret_bf16_s32(a), svreinterpret_bf16_s32(b));
}
