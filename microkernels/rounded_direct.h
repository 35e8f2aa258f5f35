/* Kernels round blocks of A to 8 bits. */
enum { PS_ROUNDED = 0 };
