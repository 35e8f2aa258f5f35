/* AVX512-FP16: the broadcast of an f16 converts in one instruction, which clang 14 offers no
 * intrinsic for where only a function's attribute enables it. */
PS_INLINE ps_vec ps_splat_f16_at_once(const uint16_t *p)
{
    ps_vec x;
    __asm__("vcvtph2psx %1%{1to16%}, %0" : "=v"(x) : "m"(*p));
    return x;
}
#define ps_splat_f16 ps_splat_f16_at_once
