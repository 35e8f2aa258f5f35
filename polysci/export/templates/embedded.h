
/* The same with the weights that are a part of the library. */
@NAME@_model *@NAME@_load_embedded(const char **why);
