
int64_t @NAME@_position(const @NAME@_context *context)
{
    int64_t position;
    memcpy(&position, context->arena + @COUNTER@, sizeof position);
    return position;
}

int @NAME@_prefill(@NAME@_context *context, const @TOKEN@ *tokens, int64_t count, @RESULT@ *results)
{
    static const int64_t lengths[] = {@LENGTHS@}, rows[] = {@ROWS@};
    @RESULT@ *const all = (@RESULT@ *)(void *)(context->arena + ARENA);
    if (count < 1)
        return @UPPER@_NO_TOKENS;
    if (count > @CAPACITY@ - @NAME@_position(context))
        return @UPPER@_FULL;
    int entry = 0;
    for (;;) {
        while (lengths[entry] > count)
            ++entry;
        switch (entry) {
@CASES@
        }
        tokens += lengths[entry];
        if (!(count -= lengths[entry]))
            break;
    }
    memcpy(results, all + (rows[entry] - 1) * @RESULTS@, @RESULTS@ * sizeof *results);
    return 0;
}

int @NAME@_decode(@NAME@_context *context, @TOKEN@ token, @RESULT@ *results)
{
    if (@NAME@_position(context) >= @CAPACITY@)
        return @UPPER@_FULL;
    @DECODE@(context, &token, results);
    return 0;
}
