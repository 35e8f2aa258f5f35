
/* The same of arrays that lie apart, in the order of the file, without its head and its padding. */
@NAME@_model *@NAME@_load_parts(const void *const *parts, const char **why);

/* The instruction set of the code that this CPU runs; empty if it runs none. */
const char *@NAME@_isa(void);
