int @NAME@_reserve(@NAME@_device *device, size_t bytes, @NAME@_memory **memory)
{
    device->fault = @UPPER@_OK;
    *memory = reserve(device, bytes);
    return device->fault;
}

void @NAME@_release(@NAME@_device *device, @NAME@_memory *memory) { release(device, memory); }

typedef void pack_launches(@NAME@_device *device, buffer w, buffer packed);
typedef void run_launches(@NAME@_device *device, buffer x, buffer packed, buffer y, buffer bias,
                          buffer residual, buffer clamp, buffer workspace);

/* Pack an array of so many bytes. */
static int pack(@NAME@_device *device, pack_launches *launches, const void *w, size_t bytes,
                buffer packed)
{
    device->fault = @UPPER@_OK;
    buffer own = copy_in(device, w, bytes);
    launches(device, own, packed);
    release(device, own);
    return device->fault;
}

/* Copy arrays to the device, launch, copy y back. */
static int run(@NAME@_device *device, run_launches *launches, const void *x, size_t x_bytes,
               buffer packed, void *y, size_t y_bytes, const void *bias, size_t bias_bytes,
               const void *residual, const float *clamp, buffer workspace)
{
    device->fault = @UPPER@_OK;
    buffer own_x = copy_in(device, x, x_bytes), own_y = reserve(device, y_bytes);
    buffer own_bias = copy_in(device, bias, bias_bytes);
    buffer own_residual = copy_in(device, residual, y_bytes);
    buffer own_clamp = copy_in(device, clamp, 2 * sizeof *clamp);
    launches(device, own_x, packed, own_y, own_bias, own_residual, own_clamp, workspace);
    read_memory(device, own_y, y, y_bytes);
    release(device, own_x), release(device, own_y), release(device, own_bias);
    release(device, own_residual), release(device, own_clamp);
    return device->fault;
}

@*LAYERS@
/* @LAYER@ */
int64_t @LAYER@_packed_size(void) { return @LAYER@_PACKED_SIZE; }
int64_t @LAYER@_workspace_size(void) { return @LAYER@_WORKSPACE_SIZE; }

int @LAYER@_pack_weights(@PACK_PARAMETERS@)
{
    return pack(device, launch_@CODE@_pack_weights, w, @LAYER@_W_SIZE, packed);
}

int @LAYER@_launch(@NAME@_device *device, @NAME@_memory *x, @NAME@_memory *packed, @NAME@_memory *y,
                   @NAME@_memory *bias, @NAME@_memory *residual, @NAME@_memory *clamp,
                   @NAME@_memory *workspace)
{
    device->fault = @UPPER@_OK;
    launch_@CODE@(device, x, packed, y, bias, residual, clamp, workspace);
    return device->fault;
}

int @LAYER@(@RUN_PARAMETERS@)
{
    return run(device, launch_@CODE@, x, @LAYER@_X_SIZE, packed, y, @LAYER@_Y_SIZE,
               bias, @BIAS_SIZE@, residual, clamp, workspace);
}

@/LAYERS@
