
void @NAME@_use_workers(@NAME@_context *context, int threads, int awake)
{
    context->pool.threads = threads;
    context->pool.meeting.awake = awake;
}

void @NAME@_work(@NAME@_context *context, int thread)
{
    ps_pool *pool = &context->pool;
    for (unsigned run = 0;; ++run) {
        ps_await(&pool->meeting, &pool->runs, run, thread);
        part_of(pool, thread);
    }
}
