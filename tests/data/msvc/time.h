/* As MSVC declares them, with a long of 32 bits and nothing of POSIX: for clang where there is no Windows. */
#pragma once
#include <stdint.h>
#define TIME_UTC 1
struct timespec { int64_t tv_sec; long tv_nsec; };
int timespec_get(struct timespec *now, int base);
