/* As MSVC declares them, with a long of 32 bits and nothing of POSIX: for clang where there is no Windows. */
#pragma once
#include <stddef.h>
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void free(void *memory);
int atoi(const char *text);
char *getenv(const char *name);
double strtod(const char *text, char **end);
void qsort(void *first, size_t count, size_t bytes, int (*compare)(const void *, const void *));
__declspec(noreturn) void exit(int status);
__declspec(noreturn) void abort(void);
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
