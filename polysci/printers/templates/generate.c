
int64_t @NAME@_position(const @NAME@_context *context)
{
    int64_t position;
    memcpy(&position, context->arena + @COUNTER@, sizeof position);
    return position;
}

/* Read tokens; `last` is then where the results of the last one lie. */
static int read_tokens(@NAME@_context *context, const @TOKEN@ *tokens, int64_t count, const @RESULT@ **last)
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
    *last = all + (rows[entry] - 1) * @RESULTS@;
    return 0;
}

int @NAME@_prefill(@NAME@_context *context, const @TOKEN@ *tokens, int64_t count, @RESULT@ *results)
{
    const @RESULT@ *last;
    const int why = read_tokens(context, tokens, count, &last);
    if (!why)
        memcpy(results, last, @RESULTS@ * sizeof *results);
    return why;
}

int @NAME@_decode(@NAME@_context *context, @TOKEN@ token, @RESULT@ *results)
{
    if (@NAME@_position(context) >= @CAPACITY@)
        return @UPPER@_FULL;
    @DECODE@;
    return 0;
}
@SAMPLE@