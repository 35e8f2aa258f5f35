/* What drivers ask of pages, where none can be protected: memory full of NaN. */
#include <stdlib.h>
#include <string.h>

#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_PRIVATE 1
#define MAP_ANONYMOUS 2
#define MAP_FAILED ((void *)0)

static inline void *mmap(void *at, size_t bytes, int access, int kind, int file, long offset)
{
    (void)at, (void)access, (void)kind, (void)file, (void)offset;
    void *memory = aligned_alloc(65536, (bytes + 65535) / 65536 * 65536);
    return memory ? memset(memory, 0xff, bytes) : MAP_FAILED;
}
static inline int mprotect(void *at, size_t bytes, int access)
{
    return (void)at, (void)bytes, (void)access, 0;
}
