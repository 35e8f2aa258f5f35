/* SVE with vectors of 512 bits. */
#define PS_SVE_BITS 512
#define PS_SVE_HWCAP2 0ul
