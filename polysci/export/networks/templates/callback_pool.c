/* A pool: a thread for each part but the first. One that keeps its threads is faster. */
#include <pthread.h>

typedef struct {
    @NAME@_part *part;
    void *data;
    int index;
} one_part;

static void *run_part(void *given)
{
    const one_part *p = given;
    p->part(p->data, p->index);
    return 0;
}

static void run_parts(void *pool, int parts, @NAME@_part *part, void *data)
{
    _Alignas(64) one_part all[@COUNT@];
    _Alignas(64) pthread_t threads[@COUNT@];
    int started = 1;
    (void)pool;
    for (int i = 0; i < parts; ++i)
        all[i] = (one_part){part, data, i};
    while (started < parts && !pthread_create(&threads[started], 0, run_part, &all[started]))
        ++started;
    part(data, 0);
    for (int i = started; i < parts; ++i)
        part(data, i);
    while (--started > 0)
        pthread_join(threads[started], 0);
}

