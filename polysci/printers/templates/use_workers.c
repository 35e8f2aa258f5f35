
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

void @NAME@_fail(@NAME@_context *context, int thread)
{
    ps_meeting *at = &context->pool.meeting;
    int none = 0;
    atomic_compare_exchange_strong(&at->failed, &none, thread);
    ps_advance(at, &at->turn);
    ps_advance(at, &context->pool.runs);
}

int @NAME@_failed(@NAME@_context *context) { return atomic_load(&context->pool.meeting.failed); }
