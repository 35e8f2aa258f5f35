/* Note an error of CUDA's, if it is one. */
static void check(@NAME@_device *device, int error, const char *what)
{
    const int memory = error == CUDA_ERROR_OUT_OF_MEMORY;
    const char *name = 0;
    if (!error)
        return;
    (void)device->driver.GetErrorName(error, &name);
    fail(device, memory ? @UPPER@_NO_MEMORY : @UPPER@_FAILED, "%s: %sCUDA's error %d%s%s", what,
         memory ? "memory is short: " : "", error, name ? ", " : "", name ? name : "");
}

/* Make the device's context that of this thread until `leave`; whether it is. */
static int enter(@NAME@_device *device)
{
    const int error = device->driver.CtxPushCurrent_v2(device->own.context);
    check(device, error, "the context of the device");
    return !error;
}

static void leave(@NAME@_device *device) { (void)device->driver.CtxPopCurrent_v2(0); }

/* How many devices there are; *id becomes the one of this number. */
static int count_devices(const driver *cu, int number, int *id)
{
    int count = 0;
    if (cu->Init(0) || cu->DeviceGetCount(&count))
        return 0;
    return number >= 0 && number < count && cu->DeviceGet(id, number) ? 0 : count;
}

static void make_kernels(@NAME@_device *device)
{
    if (!enter(device))
        return;
    for (int i = 0; i < KERNEL_COUNT && !device->fault; ++i)
        check(device, device->driver.ModuleGetFunction(&device->own.kernels[i], device->own.module,
                                                       kernel_names[i]), kernel_names[i]);
    leave(device);
}

/* The lines of the text as one; null where memory is short. */
static char *whole_text(void)
{
    size_t size = 1;
    for (size_t i = 0; i < sizeof text / sizeof *text; ++i)
        size += strlen(text[i]);
    char *whole = malloc(size), *end = whole;
    for (size_t i = 0; whole && i < sizeof text / sizeof *text; ++i) {
        const size_t length = strlen(text[i]);
        memcpy(end, text[i], length);
        end += length;
    }
    if (whole)
        *end = 0;
    return whole;
}

/* Hand over the machine code, or where the device is of another kind, the text. */
static void build(@NAME@_device *device)
{
    static _Thread_local char log[2048];
    _Alignas(64) int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    _Alignas(64) void *values[] = {log, (void *)(uintptr_t)sizeof log};
    if (!enter(device))
        return;
    log[0] = 0;
    if (device->driver.ModuleLoadData(&device->own.module, binary)) {
        char *whole = whole_text();
        const int error = whole ? device->driver.ModuleLoadDataEx(&device->own.module, whole, 2,
                                                                  options, values)
                                : CUDA_ERROR_OUT_OF_MEMORY;
        if (error)
            fail(device, @UPPER@_NO_BUILD, "the driver refuses the code: CUDA's error %d %s", error,
                 log);
        free(whole);
    }
    leave(device);
}

/* Open a stream of the device's own. */
static void open_handles(@NAME@_device *device)
{
    check(device, device->driver.DevicePrimaryCtxRetain(&device->own.context, device->id),
          "a context");
    device->own.retained = !device->fault;
    if (device->fault || !enter(device))
        return;
    check(device, device->driver.StreamCreate(&device->own.stream, CU_STREAM_NON_BLOCKING),
          "a stream");
    device->own.made = !device->fault;
    leave(device);
}

/* Take the caller's stream. */
static void adopt_queue(@NAME@_device *device, CUstream stream)
{
    check(device, device->driver.Init(0), "the driver");
    if (!device->fault)
        check(device, device->driver.StreamGetCtx(stream, &device->own.context),
              "the stream of the caller");
    if (device->fault || !enter(device))
        return;
    check(device, device->driver.CtxGetDevice(&device->id), "the device of the caller's stream");
    device->own.stream = stream;
    leave(device);
}

static void close_handles(@NAME@_device *device)
{
    const driver *cu = &device->driver;
    if (device->own.context && !cu->CtxPushCurrent_v2(device->own.context)) {
        if (device->own.stream)
            (void)cu->StreamSynchronize(device->own.stream);
        if (device->own.module)
            (void)cu->ModuleUnload(device->own.module);
        if (device->own.made)
            (void)cu->StreamDestroy_v2(device->own.stream);
        leave(device);
    }
    if (device->own.retained)
        (void)cu->DevicePrimaryCtxRelease_v2(device->id);
}

/* Memory of the device; null where there was a fault. */
static buffer reserve(@NAME@_device *device, size_t bytes)
{
    uint64_t at = 0;
    if (device->fault || !enter(device))
        return 0;
    const int error = device->driver.MemAlloc_v2(&at, bytes ? bytes : 1);
    if (error) {
        _Alignas(64) char name[256] = "the device";
        size_t all = 0;
        (void)device->driver.DeviceGetName(name, sizeof name, device->id);
        (void)device->driver.DeviceTotalMem_v2(&all, device->id);
        fail(device, @UPPER@_NO_MEMORY, "%zu bytes of memory on %s, which has %zu in all: CUDA's "
             "error %d", bytes, name, all, error);
    }
    leave(device);
    return error ? 0 : (buffer)(uintptr_t)at;
}

/* Give memory back when the stream no longer uses it. */
static void release(@NAME@_device *device, buffer memory)
{
    if (!memory || device->driver.CtxPushCurrent_v2(device->own.context))
        return;
    (void)device->driver.StreamSynchronize(device->own.stream);
    (void)device->driver.MemFree_v2((uintptr_t)memory);
    leave(device);
}

/* Copy to its place `at`; the caller's array may go afterwards. */
static void write_memory(@NAME@_device *device, buffer memory, size_t at, const void *from,
                         size_t bytes)
{
    if (device->fault || !bytes || !enter(device))
        return;
    check(device, device->driver.MemcpyHtoDAsync_v2((uintptr_t)memory + at, from, bytes,
                                                    device->own.stream), "copying to the device");
    check(device, device->driver.StreamSynchronize(device->own.stream), "copying to the device");
    leave(device);
}

/* Copy behind all that the stream was given before, and wait. */
static void read_memory(@NAME@_device *device, buffer memory, void *to, size_t bytes)
{
    if (device->fault || !bytes || !enter(device))
        return;
    check(device, device->driver.MemcpyDtoHAsync_v2(to, (uintptr_t)memory, bytes,
                                                    device->own.stream), "copying from the device");
    check(device, device->driver.StreamSynchronize(device->own.stream), "copying from the device");
    leave(device);
}

/* Have the stream run a kernel behind all that it was given before, by `groups` of `items` each. */
static void launch(@NAME@_device *device, int kernel, size_t groups, size_t items, unsigned count,
                   const argument *arguments)
{
    (void)count;
    if (device->fault || !enter(device))
        return;
    check(device, device->driver.LaunchKernel(
              device->own.kernels[kernel], (unsigned)groups, 1, 1, (unsigned)items, 1, 1, 0,
              device->own.stream, (void **)(uintptr_t)arguments, 0), kernel_names[kernel]);
    leave(device);
}
@?NETWORK@

/* Launches that are given to the device as one. */
typedef CUgraphExec recording;

/* Have a stream of its own note launches, which do not run. */
static void begin_recording(@NAME@_device *device)
{
    CUstream stream = 0;
    if (device->fault || !enter(device))
        return;
    check(device, device->driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    if (!device->fault)
        check(device, device->driver.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
              "a graph");
    device->own.stream = stream;
    leave(device);
}

/* What was noted since; null where there was a fault. `stream` is the device's from now on. */
static recording end_recording(@NAME@_device *device, CUstream stream)
{
    CUgraph graph = 0;
    recording made = 0;
    if (device->own.stream == stream || device->driver.CtxPushCurrent_v2(device->own.context))
        return 0;
    if (device->own.stream) {
        check(device, device->driver.StreamEndCapture(device->own.stream, &graph), "a graph");
        (void)device->driver.StreamDestroy_v2(device->own.stream);
    }
    if (!device->fault)
        check(device, device->driver.GraphInstantiateWithFlags(&made, graph, 0), "a graph");
    if (graph)
        (void)device->driver.GraphDestroy(graph);
    device->own.stream = stream;
    leave(device);
    return made;
}

static void play(@NAME@_device *device, recording made)
{
    if (device->fault || !enter(device))
        return;
    check(device, device->driver.GraphLaunch(made, device->own.stream), "a graph");
    leave(device);
}

static void release_recording(@NAME@_device *device, recording made)
{
    if (!made || device->driver.CtxPushCurrent_v2(device->own.context))
        return;
    (void)device->driver.GraphExecDestroy(made);
    leave(device);
}
@/NETWORK@
