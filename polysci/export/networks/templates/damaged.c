static int refused(const void *weights, size_t size, const char *reason)
{
    const char *why = 0;
    @NAME@_model *model = @NAME@_load_memory(weights, size, &why);
    const int right = !model && why && strstr(why, reason);
    @NAME@_unload(model);
    return right;
}

static void damaged(char *weights, size_t size)
{
    const char *why = 0;
    expect(!@NAME@_load("/nonexistent/@NAME@.weights", &why) && why, "a missing file was loaded");
    expect(refused(weights, size - 1, size > HEAD ? "short" : "not the weights"),
           "weights without their last byte were loaded");
    expect(refused(weights, HEAD / 2, "not the weights"), "half a head was loaded");
    weights[HEAD / 2 - 1] ^= 1;
    expect(refused(weights, size, "not the weights"), "other weights were loaded");
    weights[HEAD / 2 - 1] ^= 1;
    if (size > HEAD) {
        weights[HEAD + (size - HEAD) / 2] ^= 4;
        expect(refused(weights, size, "damaged"), "damaged weights were loaded");
        weights[HEAD + (size - HEAD) / 2] ^= 4;
    }
}
