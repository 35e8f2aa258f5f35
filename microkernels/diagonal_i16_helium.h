/* Depthwise and grouped kernels on Helium: a lane of A is one number, not a pair, so that one product of
 * the low halves is enough. */
PS_INLINE ps_acc ps_dot_beside(ps_wide a, ps_wide b, ps_acc sum)
{
    return vaddq_s32(sum, vmullbq_int_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
/* What follows is written against this name. */
#define ps_dot ps_dot_beside
