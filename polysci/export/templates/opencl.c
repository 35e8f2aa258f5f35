#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OpenCL, as far as it is called here. Its loader is looked for at run time, so that neither headers
 * nor a library are needed to build; -D@UPPER@_LOADER='"FILE"' names another one. */
#ifndef @UPPER@_LOADER
#define @UPPER@_LOADER "libOpenCL.so.1"
#endif

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bits;
typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_event *cl_event;

enum {
    CL_TRUE = 1,
    CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101f,
    CL_DEVICE_NAME = 0x102b,
    CL_QUEUE_CONTEXT = 0x1090,
    CL_QUEUE_DEVICE = 0x1091,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_PROGRAM_BUILD_LOG = 0x1183
};
static const cl_bits CL_DEVICE_TYPE_ALL = 0xffffffff, CL_MEM_READ_WRITE = 1, CL_OUT_OF_ORDER = 1;

/* Its functions: result, name behind "cl", parameters. */
#define OPENCL(F)                                                                                  \
    F(cl_int, GetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                              \
    F(cl_int, GetDeviceIDs, (cl_platform_id, cl_bits, cl_uint, cl_device_id *, cl_uint *))         \
    F(cl_int, GetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                    \
    F(cl_context, CreateContext,                                                                   \
      (const intptr_t *, cl_uint, const cl_device_id *, void *, void *, cl_int *))                 \
    F(cl_int, RetainContext, (cl_context))                                                         \
    F(cl_int, ReleaseContext, (cl_context))                                                        \
    F(cl_command_queue, CreateCommandQueue, (cl_context, cl_device_id, cl_bits, cl_int *))         \
    F(cl_int, RetainCommandQueue, (cl_command_queue))                                              \
    F(cl_int, ReleaseCommandQueue, (cl_command_queue))                                             \
    F(cl_int, GetCommandQueueInfo, (cl_command_queue, cl_uint, size_t, void *, size_t *))          \
    F(cl_program, CreateProgramWithSource,                                                         \
      (cl_context, cl_uint, const char **, const size_t *, cl_int *))                              \
    F(cl_int, BuildProgram,                                                                        \
      (cl_program, cl_uint, const cl_device_id *, const char *, void *, void *))                   \
    F(cl_int, GetProgramBuildInfo,                                                                 \
      (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *))                               \
    F(cl_int, ReleaseProgram, (cl_program))                                                        \
    F(cl_kernel, CreateKernel, (cl_program, const char *, cl_int *))                               \
    F(cl_int, ReleaseKernel, (cl_kernel))                                                          \
    F(cl_int, SetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                            \
    F(cl_mem, CreateBuffer, (cl_context, cl_bits, size_t, void *, cl_int *))                       \
    F(cl_int, ReleaseMemObject, (cl_mem))                                                          \
    F(cl_int, EnqueueWriteBuffer,                                                                  \
      (cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *, cl_uint, const cl_event *, \
       cl_event *))                                                                                \
    F(cl_int, EnqueueReadBuffer,                                                                   \
      (cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, cl_uint, const cl_event *,       \
       cl_event *))                                                                                \
    F(cl_int, EnqueueNDRangeKernel,                                                                \
      (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *,       \
       cl_uint, const cl_event *, cl_event *))

#define MEMBER(result, name, parameters) result(*name) parameters;
typedef struct {
    OPENCL(MEMBER)
} opencl;

/* Fill it with the functions of the loader; whether all are there. */
static int found_opencl(opencl *cl)
{
    void *loader = dlopen(@UPPER@_LOADER, RTLD_NOW | RTLD_LOCAL), *function = 0;
    int all = loader != 0;
#define FIND(result, name, parameters)                                                             \
    function = all ? dlsym(loader, "cl" #name) : 0;                                                \
    memcpy(&cl->name, &function, sizeof function);                                                 \
    all &= function != 0;
    OPENCL(FIND)
    return all; /* it stays: drivers do not like to go */
}

/* The kernels, and their text by lines: @NAME@.cl. */
enum {
@*KERNELS@
    @KERNEL@,
@/KERNELS@
    KERNEL_COUNT
};
static const char *const kernel_names[] = {
@*KERNELS@
    "@KERNEL@",
@/KERNELS@
};
static const char *text[] = {
#include "@NAME@_kernels.h"
};

/* What a device is; a kernel keeps its arguments, so that each thread needs kernels of its own. */
struct @NAME@_device {
    opencl cl;
    cl_device_id id;
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    cl_kernel kernels[KERNEL_COUNT];
    int fault; /* of the call under way, in which nothing happens behind one */
};

static _Thread_local char why_text[4096];

const char *@NAME@_why(void) { return why_text; }

/* Note the first fault of a call. */
static void fail(@NAME@_device *device, int fault, const char *format, ...)
{
    va_list arguments;
    if (device->fault)
        return;
    device->fault = fault;
    va_start(arguments, format);
    vsnprintf(why_text, sizeof why_text, format, arguments);
    va_end(arguments);
}

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
static int count_devices(const opencl *cl, int number, cl_device_id *id)
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

static int devices_here(void)
{
    opencl cl;
    cl_device_id id = 0;
    return found_opencl(&cl) ? count_devices(&cl, 0, &id) : 0;
}

/* The kernels of the program, for one thread. */
static void make_kernels(@NAME@_device *device)
{
    cl_int error = 0;
    for (int i = 0; i < KERNEL_COUNT && !device->fault; ++i) {
        device->kernels[i] = device->cl.CreateKernel(device->program, kernel_names[i], &error);
        check(device, error, kernel_names[i]);
    }
}

static void release_kernels(@NAME@_device *device)
{
    for (int i = 0; i < KERNEL_COUNT; ++i)
        if (device->kernels[i])
            (void)device->cl.ReleaseKernel(device->kernels[i]);
}

/* Hand the text to the driver. */
static void build(@NAME@_device *device)
{
    const opencl *cl = &device->cl;
    cl_int error = 0;
    size_t size = 0;
    device->program
        = cl->CreateProgramWithSource(device->context, sizeof text / sizeof *text, text, 0, &error);
    check(device, error, "a program");
    if (device->fault || !cl->BuildProgram(device->program, 1, &device->id, "@OPTIONS@", 0, 0))
        return;
    (void)cl->GetProgramBuildInfo(device->program, device->id, CL_PROGRAM_BUILD_LOG, 0, 0, &size);
    char *log = calloc(size + 1, 1);
    if (log)
        (void)cl->GetProgramBuildInfo(device->program, device->id, CL_PROGRAM_BUILD_LOG, size, log, 0);
    fail(device, @UPPER@_NO_BUILD, "the driver refuses the code: %s", log ? log : "its log is long");
    free(log);
}

/* Open what `device` holds so far: the rest of it, or nothing. */
static int opened(@NAME@_device *device, @NAME@_device **to)
{
    if (!device->fault)
        build(device);
    make_kernels(device);
    const int fault = device->fault;
    if (fault) {
        @NAME@_close(device);
        device = 0;
    }
    *to = device;
    return fault;
}

/* A device without a queue. */
static @NAME@_device *new_device(void)
{
    @NAME@_device *device = calloc(1, sizeof *device);
    if (!device)
        snprintf(why_text, sizeof why_text, "this process has no memory");
    else if (!found_opencl(&device->cl))
        fail(device, @UPPER@_NO_DEVICE, "%s, the loader of OpenCL, cannot be opened", @UPPER@_LOADER);
    return device;
}

int @NAME@_open(int number, @NAME@_device **to)
{
    @NAME@_device *device = new_device();
    cl_int error = 0;
    *to = 0;
    if (!device)
        return @UPPER@_NO_MEMORY;
    const opencl *cl = &device->cl;
    if (!device->fault) {
        const int count = count_devices(cl, number, &device->id);
        if (!device->id)
            fail(device, @UPPER@_NO_DEVICE, "no OpenCL device %d: there are %d", number, count);
    }
    if (!device->fault) {
        device->context = cl->CreateContext(0, 1, &device->id, 0, 0, &error);
        check(device, error, "a context");
    }
    if (!device->fault) {
        device->queue = cl->CreateCommandQueue(device->context, device->id, 0, &error);
        check(device, error, "a queue");
    }
    return opened(device, to);
}

int @NAME@_open_queue(cl_command_queue queue, @NAME@_device **to)
{
    @NAME@_device *device = new_device();
    *to = 0;
    if (!device)
        return @UPPER@_NO_MEMORY;
    const opencl *cl = &device->cl;
    if (!device->fault) {
        cl_context context = 0;
        cl_bits properties = 0;
        cl_int error = cl->GetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, 0);
        if (!error)
            error = cl->GetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device->id, &device->id, 0);
        if (!error)
            error = cl->GetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties,
                                            0);
        check(device, error, "the queue of the caller");
        if (properties & CL_OUT_OF_ORDER)
            fail(device, @UPPER@_FAILED, "the queue of the caller runs commands out of order");
        if (!device->fault && !cl->RetainContext(context))
            device->context = context;
        if (!device->fault && !cl->RetainCommandQueue(queue))
            device->queue = queue;
    }
    return opened(device, to);
}

void @NAME@_close(@NAME@_device *device)
{
    if (!device)
        return;
    release_kernels(device);
    if (device->program)
        (void)device->cl.ReleaseProgram(device->program);
    if (device->queue)
        (void)device->cl.ReleaseCommandQueue(device->queue);
    if (device->context)
        (void)device->cl.ReleaseContext(device->context);
    free(device);
}

/* Memory of the device; null where there was a fault. */
static cl_mem reserve(@NAME@_device *device, size_t bytes)
{
    cl_int error = 0;
    if (device->fault)
        return 0;
    cl_mem memory
        = device->cl.CreateBuffer(device->context, CL_MEM_READ_WRITE, bytes ? bytes : 1, 0, &error);
    if (error) {
        _Alignas(64) char name[256] = "the device";
        uint64_t all = 0;
        (void)device->cl.GetDeviceInfo(device->id, CL_DEVICE_NAME, sizeof name, name, 0);
        (void)device->cl.GetDeviceInfo(device->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof all, &all, 0);
        fail(device, @UPPER@_NO_MEMORY, "%zu bytes of memory on %s, which has %llu in all: OpenCL's "
             "error %d", bytes, name, (unsigned long long)all, (int)error);
        return 0;
    }
    return memory;
}

static void release(@NAME@_device *device, cl_mem memory)
{
    if (memory)
        (void)device->cl.ReleaseMemObject(memory);
}

/* Copy to its place `at`; the caller's array may go afterwards. */
static void write_memory(@NAME@_device *device, cl_mem memory, size_t at, const void *from,
                         size_t bytes)
{
    if (!device->fault && bytes)
        check(device, device->cl.EnqueueWriteBuffer(device->queue, memory, CL_TRUE, at, bytes, from,
                                                    0, 0, 0), "copying to the device");
}

/* Wait for all commands before, then copy. */
static void read_memory(@NAME@_device *device, cl_mem memory, void *to, size_t bytes)
{
    if (!device->fault && bytes)
        check(device, device->cl.EnqueueReadBuffer(device->queue, memory, CL_TRUE, 0, bytes, to, 0, 0,
                                                   0), "copying from the device");
}

/* A copy on the device of an array; null of none. */
static cl_mem copy_in(@NAME@_device *device, const void *from, size_t bytes)
{
    cl_mem memory = from ? reserve(device, bytes) : 0;
    if (memory)
        write_memory(device, memory, 0, from, bytes);
    return memory;
}

/* An argument of a kernel: memory or a number. */
typedef struct {
    const void *at;
    size_t size;
} argument;
#define OF(name) {&(name), sizeof(name)}

/* Have the queue run a kernel behind all that it was given before, by `groups` of `items` each. */
static void launch(@NAME@_device *device, int kernel, size_t groups, size_t items, cl_uint count,
                   const argument *arguments)
{
    const opencl *cl = &device->cl;
    const cl_kernel own = device->kernels[kernel];
    const size_t all = groups * items;
    cl_int error = 0;
    if (device->fault)
        return;
    for (cl_uint i = 0; i < count && !error; ++i)
        error = cl->SetKernelArg(own, i, arguments[i].size, arguments[i].at);
    if (!error)
        error = cl->EnqueueNDRangeKernel(device->queue, own, 1, 0, &all, &items, 0, 0, 0);
    check(device, error, kernel_names[kernel]);
}

@LAUNCHES@
