/* What kernels read of U: f32, as it is. */
enum { PS_WINOGRAD_SCALED = 0 };
PS_SCALAR ps_b ps_winograd_rounded(double u) { return (float)u; }
