int @NAME@_supported(void);
typedef struct @NAME@_model @NAME@_model;
typedef struct @NAME@_context @NAME@_context;
@NAME@_model *@NAME@_load(const char *path, const char **why);
@NAME@_model *@NAME@_load_parts(const void *const *parts, const char **why);
const void *@NAME@_model_data(const @NAME@_model *model);
@NAME@_context *@NAME@_new(const @NAME@_model *model);
@RUNS@
void @NAME@_free(@NAME@_context *context);
void @NAME@_unload(@NAME@_model *model);
size_t @NAME@_model_size(void);
size_t @NAME@_context_size(void);
