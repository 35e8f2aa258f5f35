static void pools(const @NAME@_model *model, void **x, void **expected)
{
    @NAME@_parallel *const all[] = {run_parts, run_in_turn, 0};
    @NAME@_context *context = @NAME@_new(model);
    _Alignas(64) void *y[OUTPUTS + 1] = {0};
    int same = context != 0;
    for (int p = 0; context && p < 3; ++p) {
        for (int i = 0; i < OUTPUTS; ++i)
            y[i] = room(size_of(&outputs[i]));
        @NAME@_use_pool(context, all[p], 0);
        run(context, x, y);
        for (int i = 0; i < OUTPUTS; ++i) {
            same &= !memcmp(y[i], expected[i], size_of(&outputs[i]));
            free(y[i]);
        }
    }
    @NAME@_free(context);
    expect(same, "results depend on the pool");
}

