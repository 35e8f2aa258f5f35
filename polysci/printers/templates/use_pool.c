
void @NAME@_use_pool(@NAME@_context *context, @NAME@_parallel *parallel, void *pool)
{
    context->parallel = parallel;
    context->pool = pool;
}
