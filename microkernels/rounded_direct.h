/* Kernels round blocks of A to bytes. */
enum { PS_ROUNDED = 0 };
