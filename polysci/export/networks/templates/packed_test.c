    char path[4096];
    snprintf(path, sizeof path, "%s/@NAME@.weights", folder);
    model = @NAME@_map(path, &why);
    expect(model != 0, model ? "" : why);
    if (model)
        results(model, data);
    @NAME@_unload(model);
    char *memory = room(size + 128), *line = memory + 64 - (uintptr_t)memory % 64;
    memcpy(line + 1, weights, size);
    expect(!@NAME@_use(line + 1, size, &why) && strstr(why, "multiple"), "used at an odd address");
    memcpy(line, weights, size);
    model = @NAME@_use(line, size, &why);
    expect(model && @NAME@_model_data(model) == line + HEAD, model ? "not used in place" : why);
    if (model)
        results(model, data);
    @NAME@_unload(model);
    free(memory);
