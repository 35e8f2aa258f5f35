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
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_NAME = 0x102b,
    CL_QUEUE_CONTEXT = 0x1090,
    CL_QUEUE_DEVICE = 0x1091,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_LOCAL_MEM_SIZE = 0x11b2
};
static const cl_bits CL_DEVICE_TYPE_ALL = 0xffffffff, CL_MEM_READ_WRITE = 1, CL_OUT_OF_ORDER = 1;

/* Its functions: result, name behind "cl", parameters. */
#define FUNCTIONS(F)                                                                               \
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
    F(cl_int, GetKernelWorkGroupInfo,                                                              \
      (cl_kernel, cl_device_id, cl_uint, size_t, void *, size_t *))                                \
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

typedef cl_device_id device_id;
typedef cl_mem buffer;
typedef struct {
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    cl_kernel kernels[KERNEL_COUNT]; /* each keeps its arguments: each thread needs kernels of its own */
} handles;

/* An argument of a kernel: memory or a number. */
typedef struct {
    const void *at;
    size_t size;
} argument;
#define OF(name) {&(name), sizeof(name)}
