/* Operands between guard pages. */
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 1 << 20 }; /* bytes for the largest operand of a case */

static region reserve(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *all = mmap(0, ROOM + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    region r = {0, 0};
    if (all == MAP_FAILED || mprotect(all + page, ROOM, PROT_READ | PROT_WRITE)) {
        puts("no memory between guard pages");
        exit(2);
    }
    r.start = (void *)(all + page);
    r.end = (void *)(all + page + ROOM);
    return r;
}

static int is_untouched(region r) { return (void)r, 1; } /* the pages told */
