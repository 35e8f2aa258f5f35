#ifdef __unix__
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

enum { HEAD = 64 };
#define WHOLE (HEAD + CONSTANTS + PACKED) /* bytes of a file */

/* What is wrong with the bytes of a file; null where nothing is. */
static const char *fault_of(const char *file, size_t bytes)
{
    static const char head[HEAD] = "polysci packed @DIGEST@";
    uint64_t sum = 0, sums = 0; /* of all words, and of the sums on the way */
    if (bytes < HEAD || memcmp(file, head, HEAD))
        return "these are not the weights of this network";
    if (bytes < WHOLE)
        return "the weights are cut short";
    for (size_t i = HEAD; i < WHOLE; i += 8) {
        uint64_t word;
        memcpy(&word, file + i, 8);
        sum += word;
        sums += sum;
    }
    return sum == UINT64_C(@SUM@) && sums == UINT64_C(@SUMS@) ? 0 : "the weights are damaged";
}

/* A copy of a file in memory of this process, from `file` or from `bytes` bytes at `weights`. */
static @NAME@_model *copied(FILE *file, const void *weights, size_t bytes, const char **why)
{
    const char *fault = unsupported();
    char *memory = fault ? 0 : room(WHOLE);
    if (memory && file)
        bytes = fread(memory, 1, WHOLE, file);
    else if (memory)
        memcpy(memory, weights, bytes < WHOLE ? bytes : WHOLE);
    if (!fault)
        fault = memory ? fault_of(memory, bytes) : NO_MEMORY;
    return model_of(memory ? memory + HEAD : 0, memory, 0, fault, why);
}

@NAME@_model *@NAME@_load(const char *path, const char **why)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return model_of(0, 0, 0, NO_FILE, why);
    @NAME@_model *model = copied(file, 0, 0, why);
    fclose(file);
    return model;
}

@NAME@_model *@NAME@_load_memory(const void *weights, size_t bytes, const char **why)
{
    return copied(0, weights, bytes, why);
}

@NAME@_model *@NAME@_use(const void *weights, size_t bytes, const char **why)
{
    const char *fault = unsupported();
    if (!fault)
        fault = (uintptr_t)weights % 64 ? "the weights start at no multiple of 64"
                                        : fault_of(weights, bytes);
    return model_of((const char *)weights + HEAD, 0, 0, fault, why);
}

@NAME@_model *@NAME@_map(const char *path, const char **why)
{
#ifdef __unix__
    struct stat about;
    const int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about)) {
        if (file >= 0)
            close(file);
        return model_of(0, 0, 0, NO_FILE, why);
    }
    const size_t bytes = (size_t)about.st_size;
    char *memory = bytes ? mmap(0, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (memory == MAP_FAILED)
        return model_of(0, 0, 0, NO_MEMORY, why);
    const char *fault = unsupported();
    if (!fault)
        fault = fault_of(memory, bytes);
    return model_of(memory + HEAD, memory, bytes, fault, why);
#else
    return @NAME@_load(path, why);
#endif
}
