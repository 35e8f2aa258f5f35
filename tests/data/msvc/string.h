/* As MSVC declares them, with a long of 32 bits and nothing of POSIX: for clang where there is no Windows. */
#pragma once
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *x, const void *y, size_t bytes);
int strcmp(const char *x, const char *y);
int strncmp(const char *x, const char *y, size_t most);
size_t strlen(const char *text);
char *strstr(const char *text, const char *part);
char *strchr(const char *text, int letter);
