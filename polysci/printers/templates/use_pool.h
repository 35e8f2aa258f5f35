
/* Runs in the context share their work among the threads of a pool: each asks it once for
 * @COUNT@ parts. Parts that run at the same time share it all, with barriers in between; one that
 * comes about 1 ms after the first finds nothing to do. So a pool that runs parts one after the
 * other computes the same, in one thread. Null, as from the beginning: the calling thread alone.
 *
 * With OpenMP, for example, a pool is
 *
 *     static void parallel(void *pool, int parts, @NAME@_part *part, void *data)
 *     {
 *         (void)pool;
 *     #pragma omp parallel for num_threads(parts)
 *         for (int i = 0; i < parts; ++i)
 *             part(data, i);
 *     } */
void @NAME@_use_pool(@NAME@_context *context, @NAME@_parallel *parallel, void *pool);
