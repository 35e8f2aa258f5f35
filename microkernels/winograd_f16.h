/* What kernels read of U: f16, each filter times a power of two that keeps it within the range. */
enum { PS_WINOGRAD_SCALED = 1 };
PS_SCALAR ps_b ps_winograd_rounded(double u) { return ps_f16_of((float)u); }
