int @NAME@_reserve(@NAME@_device *device, size_t bytes, @NAME@_memory **memory)
{
    device->fault = @UPPER@_OK;
    *memory = reserve(device, bytes);
    return device->fault;
}

void @NAME@_release(@NAME@_device *device, @NAME@_memory *memory) { release(device, memory); }

typedef void pack_launches(@NAME@_device *device, cl_mem w, cl_mem packed);
typedef void run_launches(@NAME@_device *device, cl_mem x, cl_mem packed, cl_mem y, cl_mem bias,
                          cl_mem residual, cl_mem clamp, cl_mem workspace);

/* Pack an array of so many bytes. */
static int pack(@NAME@_device *device, pack_launches *launches, const float *w, size_t bytes,
                cl_mem packed)
{
    device->fault = @UPPER@_OK;
    cl_mem own = copy_in(device, w, bytes);
    launches(device, own, packed);
    release(device, own);
    return device->fault;
}

/* Copy arrays to the device, launch, copy y back. */
static int run(@NAME@_device *device, run_launches *launches, const float *x, size_t x_bytes,
               cl_mem packed, float *y, size_t y_bytes, const float *bias, size_t bias_bytes,
               const float *residual, const float *clamp, cl_mem workspace)
{
    device->fault = @UPPER@_OK;
    cl_mem own_x = copy_in(device, x, x_bytes), own_y = reserve(device, y_bytes);
    cl_mem own_bias = copy_in(device, bias, bias_bytes);
    cl_mem own_residual = copy_in(device, residual, y_bytes);
    cl_mem own_clamp = copy_in(device, clamp, 2 * sizeof *clamp);
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

int @LAYER@_pack_weights(@NAME@_device *device, const float *w, @NAME@_memory *packed)
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

int @LAYER@(@NAME@_device *device, const float *x, @NAME@_memory *packed, float *y, const float *bias,
            const float *residual, const float *clamp, @NAME@_memory *workspace)
{
    return run(device, launch_@CODE@, x, @LAYER@_X_SIZE, packed, y, @LAYER@_Y_SIZE,
               bias, @BIAS_SIZE@, residual, clamp, workspace);
}

@/LAYERS@
