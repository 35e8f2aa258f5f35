/* SVE with vectors of 128 bits, FEAT_I8MM and FEAT_BF16: bits of AT_HWCAP2. */
#define PS_SVE_BITS 128
#define PS_SVE_HWCAP2 (1ul << 9 | 1ul << 12)
