/* As MSVC declares them, with a long of 32 bits and nothing of POSIX: for clang where there is no Windows. */
#pragma once
#include <stddef.h>
typedef struct _iobuf FILE;
FILE *__acrt_iob_func(unsigned which);
#define stdin __acrt_iob_func(0)
#define stdout __acrt_iob_func(1)
#define stderr __acrt_iob_func(2)
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
FILE *fopen(const char *path, const char *mode);
int fclose(FILE *file);
size_t fread(void *to, size_t bytes, size_t count, FILE *file);
size_t fwrite(const void *from, size_t bytes, size_t count, FILE *file);
int fseek(FILE *file, long at, int from);
long ftell(FILE *file);
int fgetc(FILE *file);
int puts(const char *text);
int printf(const char *format, ...);
int fprintf(FILE *file, const char *format, ...);
int sprintf(char *to, const char *format, ...);
void rewind(FILE *file);
int snprintf(char *to, size_t bytes, const char *format, ...);
