/* As MSVC declares them, with a long of 32 bits and nothing of POSIX: for clang where there is no Windows. */
#pragma once
#include <stddef.h>
void *_aligned_malloc(size_t bytes, size_t multiple);
void _aligned_free(void *memory);
