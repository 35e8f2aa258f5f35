static int passed, failed;

static void expect(int good, const char *what)
{
    good ? ++passed : ++failed;
    if (!good)
        printf("FAILED %s\n", what);
}

#ifdef COUNT_ALLOCATIONS /* and --wrap for each of these functions */
static atomic_long allocations;
static void count_allocation(void) { ++allocations; }
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_malloc(size_t size) { return count_allocation(), __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size)
{
    return count_allocation(), __real_calloc(count, size);
}
void *__wrap_realloc(void *memory, size_t size)
{
    return count_allocation(), __real_realloc(memory, size);
}
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size)
{
    return count_allocation(), __real_posix_memalign(memory, alignment, size);
}
#endif
