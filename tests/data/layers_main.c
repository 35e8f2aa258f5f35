/* Runs layers on inputs of a file, twice each, and compares the bytes of the results: bare, and with
 * bias, residual and clamp.  Before this text: prototypes, the types X, W, Y, SUM and PACKED, the
 * arguments that a precision adds, and the table LAYERS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int32_t x_zero, y_zero, residual_zero;
    float residual_scale;
    size_t x, w, bias, residual, scale; /* bytes; results have those of the residual */
    int64_t (*workspace)(void), (*packed)(void);
    void (*pack)(const W *, PACKED * PACK_TYPES);
    int (*run)(const X *, const PACKED *, Y *, const SUM *, const Y *, const float * RUN_TYPES,
               void *);
} layer;

static const layer layers[] = {LAYERS};

/* `size` bytes that end where memory ends, but for what `align` takes. */
static void *ending(size_t size, size_t align)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page) / page * page;
    char *all = mmap(0, room + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all, room, PROT_READ | PROT_WRITE))
        exit(2);
    return all + (room - size) / align * align;
}

static void *taken(FILE *file, size_t size)
{
    void *p = ending(size, 4 <= size && size % 4 == 0 ? 4 : 1);
    if (fread(p, 1, size, file) != size)
        exit(3);
    return p;
}

static int right(const layer *l, const char *which, const Y *got, const Y *want)
{
    const int same = !memcmp(got, want, l->residual);
    if (!same)
        printf("%s (%s): another result\n", l->name, which);
    return same;
}

static int passes(const layer *l, FILE *file)
{
    const X *x = taken(file, l->x);
    const W *w = taken(file, l->w);
    const SUM *bias = taken(file, l->bias);
    const Y *residual = taken(file, l->residual);
    const float *clamp = taken(file, 8), *scale = taken(file, l->scale);
    const Y *plain = taken(file, l->residual), *fused = taken(file, l->residual);
    Y *y = ending(l->residual, sizeof(Y));
    void *packed = ending((size_t)l->packed(), 64), *work = ending((size_t)l->workspace(), 64);
    const polysci_scales to = {scale, l->residual_scale, l->residual_zero, l->y_zero};
    (void)to;
    l->pack(w, packed PACK_MORE);
    if (l->run(x, packed, y, 0, 0, 0 RUN_MORE, work)) {
        printf("%s: this CPU lacks a feature\n", l->name);
        exit(77);
    }
    if (!right(l, "bare", y, plain))
        return 0;
    memset(y, 0xa5, l->residual);
    l->run(x, packed, y, bias, residual, clamp RUN_MORE, work);
    return right(l, "fused", y, fused);
}

int main(int count, char **words)
{
    FILE *file = count == 2 ? fopen(words[1], "rb") : 0;
    const int all = (int)(sizeof layers / sizeof *layers);
    int passed = 0;
    for (int i = 0; file && i < all; ++i)
        passed += passes(&layers[i], file);
    printf("%d of %d layers\n", passed, all);
    return passed != all;
}
