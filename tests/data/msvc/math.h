/* As MSVC declares them, with a long of 32 bits and nothing of POSIX: for clang where there is no Windows. */
#pragma once
#define NAN (__builtin_nanf(""))
#define INFINITY (__builtin_inff())
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)
#define UNARY(name) double name(double x); float name##f(float x);
UNARY(exp) UNARY(exp2) UNARY(log) UNARY(log2) UNARY(log1p) UNARY(expm1) UNARY(sqrt) UNARY(fabs) UNARY(floor) UNARY(ceil) UNARY(round) UNARY(rint)
UNARY(nearbyint) UNARY(trunc) UNARY(sin) UNARY(cos) UNARY(tan) UNARY(tanh) UNARY(erf) UNARY(cbrt)
#undef UNARY
int ilogb(double x);
double fmax(double x, double y);
double fmin(double x, double y);
double pow(double x, double y);
double ldexp(double x, int e);
double frexp(double x, int *e);
double fma(double x, double y, double z);
double fmod(double x, double y);
