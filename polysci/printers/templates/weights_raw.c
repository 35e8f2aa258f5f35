@SOURCE@
@PACKING@

/* The order of the file: a head, constants, then the weights of one layer after the other. */
static const char *filled(source *from, char *constants, char *packed)
{
    static const char head[64] = "polysci weights @DIGEST@";
    _Alignas(64) char first[sizeof head];
    if (!from->parts && (!fill(from, first, sizeof head) || memcmp(first, head, sizeof head)))
        return "these are not the weights of this network";
    from->sum = from->sums = 0;
    if (!pack_all(from, constants, packed))
        return "the weights are cut short";
    if (from->sum != UINT64_C(@SUM@) || from->sums != UINT64_C(@SUMS@))
        return "the weights are damaged";
    return 0;
}

static @NAME@_model *loaded(source *from, const char **why)
{
    const char *fault = unsupported();
    char *memory = fault ? 0 : room(CONSTANTS + PACKED);
    if (!fault)
        fault = memory ? filled(from, memory, memory + CONSTANTS) : NO_MEMORY;
    leave(from->scratch);
    return model_of(memory, memory, 0, fault, why);
}

@NAME@_model *@NAME@_load(const char *path, const char **why)
{
    source from = {.file = fopen(path, "rb")};
    if (!from.file)
        return model_of(0, 0, 0, NO_FILE, why);
    @NAME@_model *model = loaded(&from, why);
    fclose(from.file);
    return model;
}

@NAME@_model *@NAME@_load_memory(const void *weights, size_t bytes, const char **why)
{
    source from = {.at = weights, .left = bytes};
    return loaded(&from, why);
}

@NAME@_model *@NAME@_load_parts(const void *const *parts, const char **why)
{
    source from = {.parts = parts};
    return loaded(&from, why);
}
