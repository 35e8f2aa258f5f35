
/* The file holds weights as runs read them. Mapped: every process that does so shares its memory.
 * Used where they lie: the bytes of a file at a multiple of 64, which stay until the model goes. */
@NAME@_model *@NAME@_map(const char *path, const char **why);
@NAME@_model *@NAME@_use(const void *weights, size_t bytes, const char **why);
