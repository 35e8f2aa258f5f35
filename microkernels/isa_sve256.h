/* SVE with vectors of 256 bits, FEAT_I8MM and FEAT_BF16: bits of AT_HWCAP2. */
#define PS_SVE_BITS 256
#define PS_SVE_HWCAP2 (1ul << 9 | 1ul << 12)
