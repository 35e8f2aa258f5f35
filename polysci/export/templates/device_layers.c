int @NAME@_reserve(@NAME@_device *device, size_t bytes, @NAME@_memory **memory)
{
    device->fault = @UPPER@_OK;
    *memory = reserve(device, bytes);
    return device->fault;
}

void @NAME@_release(@NAME@_device *device, @NAME@_memory *memory) { release(device, memory); }

/* The arrays of a call on the device; null of none. */
typedef struct {
    buffer x, y, bias, residual, clamp@?SCALES@, to@/SCALES@;
} arrays;

static arrays copy_arrays(@NAME@_device *device, const void *x, size_t x_bytes, size_t y_bytes,
                          const void *bias, size_t bias_bytes, const void *residual,
                          const float *clamp)
{
    arrays own;
    memset(&own, 0, sizeof own);
    device->fault = @UPPER@_OK;
    own.x = copy_in(device, x, x_bytes), own.y = reserve(device, y_bytes);
    own.bias = copy_in(device, bias, bias_bytes);
    own.residual = copy_in(device, residual, y_bytes);
    own.clamp = copy_in(device, clamp, 2 * sizeof *clamp);
    return own;
}
@?SCALES@

/* The scales of results: those of channels stand behind the other members. */
static buffer copy_scales(@NAME@_device *device, const polysci_scales *to, size_t channels)
{
    const struct {
        float residual_scale;
        int32_t residual_zero, y_zero;
    } first = {to->residual_scale, to->residual_zero, to->y_zero};
    buffer memory = reserve(device, sizeof first + channels * sizeof *to->scale);
    if (memory) {
        write_memory(device, memory, 0, &first, sizeof first);
        write_memory(device, memory, sizeof first, to->scale, channels * sizeof *to->scale);
    }
    return memory;
}
@/SCALES@

/* Copy y back, and release all. */
static int finish(@NAME@_device *device, arrays own, void *y, size_t y_bytes)
{
    read_memory(device, own.y, y, y_bytes);
    release(device, own.x), release(device, own.y), release(device, own.bias);
    release(device, own.residual), release(device, own.clamp);
@?SCALES@
    release(device, own.to);
@/SCALES@
    return device->fault;
}

@*LAYERS@
/* @LAYER@ */
int64_t @LAYER@_packed_size(void) { return @LAYER@_PACKED_SIZE; }
int64_t @LAYER@_workspace_size(void) { return @LAYER@_WORKSPACE_SIZE; }

int @LAYER@_pack_weights(@PACK_PARAMETERS@)
{
    device->fault = @UPPER@_OK;
    buffer own = copy_in(device, w, @LAYER@_W_SIZE);
    launch_@CODE@_pack_weights(device, own, packed@ZERO@);
    release(device, own);
    return device->fault;
}

int @LAYER@_launch(@LAUNCH_PARAMETERS@)
{
    device->fault = @UPPER@_OK;
    launch_@CODE@(device, x, packed, y, bias, residual, clamp,@TO@ workspace);
    return device->fault;
}

int @LAYER@(@RUN_PARAMETERS@)
{
    arrays own = copy_arrays(device, x, @LAYER@_X_SIZE, @LAYER@_Y_SIZE, bias, @BIAS_SIZE@,
                             residual, clamp);@COPY_TO@
    launch_@CODE@(device, own.x, packed, own.y, own.bias, own.residual, own.clamp,@OWN_TO@ workspace);
    return finish(device, own, y, @LAYER@_Y_SIZE);
}

@/LAYERS@
