/* The main of a driver that runs where no Python does: its operands between guard pages. */
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 1 << 20 }; /* bytes for the largest operand of a case */

static region guarded(void)
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

static const char *running;
static char message[500];

/* Prints the name of what comes next, so that a crash is attributed. */
static void at(const char *name)
{
    running = name;
    puts(name);
    fflush(stdout);
}

static int told(int wrong)
{
    if (wrong)
        printf("%s: %s\n", running, message);
    return wrong;
}

int main(void)
{
    region regions[OPERANDS];
    for (int i = 0; i < OPERANDS; ++i)
        regions[i] = guarded();
    for (int index = 0; index < kernels(); ++index) {
        at(name_of(index));
        if (told(check(index, 1, regions, message, sizeof message)))
            return 1;
    }
#ifdef PACKING
    at("ps_pack_row");
    if (told(check_packing(400, regions, message, sizeof message)))
        return 1;
#endif
#ifdef SLIDING
    at("ps_slide");
    if (told(check_sliding(400, regions, message, sizeof message)))
        return 1;
#endif
    return 0;
}
