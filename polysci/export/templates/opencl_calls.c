/* Note an error of OpenCL's, if it is one. */
static void check(@NAME@_device *device, cl_int error, const char *what)
{
    const int memory = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_RESOURCES
                       || error == CL_OUT_OF_HOST_MEMORY;
    if (error)
        fail(device, memory ? @UPPER@_NO_MEMORY : @UPPER@_FAILED, "%s: %sOpenCL's error %d", what,
             memory ? "memory is short: " : "", (int)error);
}

/* How many devices there are; *id becomes the one of this number. */
static int count_devices(const driver *cl, int number, cl_device_id *id)
{
    enum { MOST = 64 };
    _Alignas(64) cl_platform_id platforms[MOST];
    _Alignas(64) cl_device_id ids[MOST];
    cl_uint platform_count = 0, own = 0;
    int count = 0;
    if (cl->GetPlatformIDs(MOST, platforms, &platform_count)) /* an error where there is none */
        return 0;
    for (cl_uint i = 0; i < platform_count && i < MOST; ++i) {
        if (cl->GetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MOST, ids, &own))
            continue;
        own = own < MOST ? own : MOST;
        if (number >= count && number < count + (int)own)
            *id = ids[number - count];
        count += (int)own;
    }
    return count;
}

/* Drivers may end the process where a group needs more local memory than there is. */
static void check_local(@NAME@_device *device, int kernel)
{
    const driver *cl = &device->driver;
    uint64_t size = 0, most = 0;
    cl_int error = cl->GetKernelWorkGroupInfo(device->own.kernels[kernel], device->id,
                                              CL_KERNEL_LOCAL_MEM_SIZE, sizeof size, &size, 0);
    if (!error)
        error = cl->GetDeviceInfo(device->id, CL_DEVICE_LOCAL_MEM_SIZE, sizeof most, &most, 0);
    check(device, error, kernel_names[kernel]);
    if (size > most)
        fail(device, @UPPER@_NO_BUILD, "%s: %llu bytes of local memory; the device has %llu for a group",
             kernel_names[kernel], (unsigned long long)size, (unsigned long long)most);
}

/* The kernels of the program, for one thread. */
static void make_kernels(@NAME@_device *device)
{
    cl_int error = 0;
    for (int i = 0; i < KERNEL_COUNT && !device->fault; ++i) {
        device->own.kernels[i]
            = device->driver.CreateKernel(device->own.program, kernel_names[i], &error);
        check(device, error, kernel_names[i]);
        if (!error)
            check_local(device, i);
    }
}

static void release_kernels(@NAME@_device *device)
{
    for (int i = 0; i < KERNEL_COUNT; ++i)
        if (device->own.kernels[i])
            (void)device->driver.ReleaseKernel(device->own.kernels[i]);
}

/* Hand the text to the driver. */
static void build(@NAME@_device *device)
{
    const driver *cl = &device->driver;
    cl_int error = 0;
    size_t size = 0;
    device->own.program = cl->CreateProgramWithSource(device->own.context, sizeof text / sizeof *text,
                                                      text, 0, &error);
    check(device, error, "a program");
    if (device->fault || !cl->BuildProgram(device->own.program, 1, &device->id, "@OPTIONS@", 0, 0))
        return;
    (void)cl->GetProgramBuildInfo(device->own.program, device->id, CL_PROGRAM_BUILD_LOG, 0, 0, &size);
    char *log = calloc(size + 1, 1);
    if (log)
        (void)cl->GetProgramBuildInfo(device->own.program, device->id, CL_PROGRAM_BUILD_LOG, size, log, 0);
    fail(device, @UPPER@_NO_BUILD, "the driver refuses the code: %s", log ? log : "its log is long");
    free(log);
}

/* Open a queue of the device's own. */
static void open_handles(@NAME@_device *device)
{
    cl_int error = 0;
    device->own.context = device->driver.CreateContext(0, 1, &device->id, 0, 0, &error);
    check(device, error, "a context");
    if (device->fault)
        return;
    device->own.queue
        = device->driver.CreateCommandQueue(device->own.context, device->id, 0, &error);
    check(device, error, "a queue");
}

/* Take the caller's queue. */
static void adopt_queue(@NAME@_device *device, cl_command_queue queue)
{
    const driver *cl = &device->driver;
    cl_context context = 0;
    cl_bits properties = 0;
    cl_int error = cl->GetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, 0);
    if (!error)
        error = cl->GetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device->id, &device->id, 0);
    if (!error)
        error = cl->GetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, 0);
    check(device, error, "the queue of the caller");
    if (properties & CL_OUT_OF_ORDER)
        fail(device, @UPPER@_FAILED, "the queue of the caller runs commands out of order");
    if (!device->fault && !cl->RetainContext(context))
        device->own.context = context;
    if (!device->fault && !cl->RetainCommandQueue(queue))
        device->own.queue = queue;
}

static void close_handles(@NAME@_device *device)
{
    release_kernels(device);
    if (device->own.program)
        (void)device->driver.ReleaseProgram(device->own.program);
    if (device->own.queue)
        (void)device->driver.ReleaseCommandQueue(device->own.queue);
    if (device->own.context)
        (void)device->driver.ReleaseContext(device->own.context);
}

/* Memory of the device; null where there was a fault. */
static buffer reserve(@NAME@_device *device, size_t bytes)
{
    cl_int error = 0;
    if (device->fault)
        return 0;
    buffer memory = device->driver.CreateBuffer(device->own.context, CL_MEM_READ_WRITE,
                                                bytes ? bytes : 1, 0, &error);
    if (error) {
        _Alignas(64) char name[256] = "the device";
        uint64_t all = 0;
        (void)device->driver.GetDeviceInfo(device->id, CL_DEVICE_NAME, sizeof name, name, 0);
        (void)device->driver.GetDeviceInfo(device->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof all, &all, 0);
        fail(device, @UPPER@_NO_MEMORY, "%zu bytes of memory on %s, which has %llu in all: OpenCL's "
             "error %d", bytes, name, (unsigned long long)all, (int)error);
        return 0;
    }
    return memory;
}

static void release(@NAME@_device *device, buffer memory)
{
    if (memory)
        (void)device->driver.ReleaseMemObject(memory);
}

/* Copy to its place `at`; the caller's array may go afterwards. */
static void write_memory(@NAME@_device *device, buffer memory, size_t at, const void *from,
                         size_t bytes)
{
    if (!device->fault && bytes)
        check(device, device->driver.EnqueueWriteBuffer(device->own.queue, memory, CL_TRUE, at, bytes,
                                                        from, 0, 0, 0), "copying to the device");
}

/* Wait for all commands before, then copy. */
static void read_memory(@NAME@_device *device, buffer memory, void *to, size_t bytes)
{
    if (!device->fault && bytes)
        check(device, device->driver.EnqueueReadBuffer(device->own.queue, memory, CL_TRUE, 0, bytes,
                                                       to, 0, 0, 0), "copying from the device");
}

/* Have the queue run a kernel behind all that it was given before, by `groups` of `items` each. */
static void launch(@NAME@_device *device, int kernel, size_t groups, size_t items, cl_uint count,
                   const argument *arguments)
{
    const driver *cl = &device->driver;
    const cl_kernel own = device->own.kernels[kernel];
    const size_t all = groups * items;
    cl_int error = 0;
    if (device->fault)
        return;
    for (cl_uint i = 0; i < count && !error; ++i)
        error = cl->SetKernelArg(own, i, arguments[i].size, arguments[i].at);
    if (!error)
        error = cl->EnqueueNDRangeKernel(device->own.queue, own, 1, 0, &all, &items, 0, 0, 0);
    check(device, error, kernel_names[kernel]);
}
