
/* Runs part(data, 0) to part(data, parts - 1), each once, in any threads, and returns when all of
 * them have returned. `pool` is what came with it. */
typedef void @NAME@_part(void *data, int index);
typedef void @NAME@_parallel(void *pool, int parts, @NAME@_part *part, void *data);
