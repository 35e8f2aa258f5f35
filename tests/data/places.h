/* Random numbers, and operands between guard pages: one starts at its start or ends at its end. */
#include <stdio.h>
#include <stdlib.h>

enum { SLACK = 64 }; /* elements beside an operand that are watched */

typedef struct {
    char *start, *end;
} region;

static uint64_t state;

static int64_t below(int64_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)limit);
}

#ifdef SANITIZED
/* The sanitizer watches both ends of a block. */
static void *placed(region r, int64_t count, size_t size, int at_end, int64_t *slack)
{
    (void)r, (void)at_end, *slack = 0;
    return malloc((size_t)count * size);
}
static void freed(void *p) { free(p); }
#else
static void *placed(region r, int64_t count, size_t size, int at_end, int64_t *slack)
{
    const int64_t bytes = count * (int64_t)size;
    *slack = ps_least(SLACK, (r.end - r.start - bytes) / (int64_t)size);
    return at_end ? r.end - bytes : r.start;
}
static void freed(void *p) { (void)p; }
#endif

/* A pattern for elements that must stay as they are. */
static void untouched(void *p, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; ++at)
        ((unsigned char *)p)[at] = (unsigned char)(at * 37 + 11);
}
