/* The matrix extension of aarch64 (SME) beside Advanced SIMD, for a streaming length of 512 bits: a
 * CPU with it adds a column of A times a row of B to a register of 16 rows of 16 words.  Outside of
 * a run nothing of it is in use, and compilers need not know it: outer_sme.h. */
enum { PS_SME_BYTES = 64, PS_SME_SIDE = 16 };
#if defined(__APPLE__)
#include <sys/sysctl.h>

PS_SCALAR int ps_has_option(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, 0, 0) == 0 && value == 1;
}
PS_SCALAR int ps_has_products(void)
{
    return ps_has_option("hw.optional.arm.FEAT_SME") &&
           ps_has_option("hw.optional.arm.SME_F32F32") &&
           ps_has_option("hw.optional.arm.SME_B16F32");
}
#else
/* Bits 23, 28 and 29 of HWCAP2: SME, its products of bf16 and of f32. */
PS_SCALAR int ps_has_products(void) { return ps_has_bits(0, 1ul << 23 | 1ul << 28 | 1ul << 29); }
#endif

/* Bytes of a vector in streaming mode in this thread: Linux may have made them shorter. */
static PS_KERNEL __attribute__((unused)) int ps_streaming_bytes(void)
{
    int64_t bytes;
    __asm__ volatile(".arch_extension sme\n\trdsvl %0, #1" : "=r"(bytes));
    return (int)bytes;
}
PS_SCALAR int ps_has_sme(void)
{
    return ps_has_neonbf16() && ps_has_products() && ps_streaming_bytes() == PS_SME_BYTES;
}
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_sme
