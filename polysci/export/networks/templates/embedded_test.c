    model = @NAME@_load_embedded(&why);
    expect(model != 0, model ? "" : why);
    if (model)
        results(model, data);
    @NAME@_unload(model);
