/* CUDA's driver, as far as it is called here. It is looked for at run time, so that neither headers
 * nor a library are needed to build; -D@UPPER@_LOADER='"FILE"' names another one. */
#ifndef @UPPER@_LOADER
#define @UPPER@_LOADER "libcuda.so.1"
#endif

typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
};

/* Its functions: result, name behind "cu", parameters. Memory of the device is a number of 64 bits. */
#define FUNCTIONS(F)                                                                               \
    F(int, Init, (unsigned))                                                                       \
    F(int, GetErrorName, (int, const char **))                                                     \
    F(int, DeviceGetCount, (int *))                                                                \
    F(int, DeviceGet, (int *, int))                                                                \
    F(int, DeviceGetName, (char *, int, int))                                                      \
    F(int, DeviceTotalMem_v2, (size_t *, int))                                                     \
    F(int, DevicePrimaryCtxRetain, (CUcontext *, int))                                             \
    F(int, DevicePrimaryCtxRelease_v2, (int))                                                      \
    F(int, CtxPushCurrent_v2, (CUcontext))                                                         \
    F(int, CtxPopCurrent_v2, (CUcontext *))                                                        \
    F(int, CtxGetDevice, (int *))                                                                  \
    F(int, StreamCreate, (CUstream *, unsigned))                                                   \
    F(int, StreamGetCtx, (CUstream, CUcontext *))                                                  \
    F(int, StreamSynchronize, (CUstream))                                                          \
    F(int, StreamDestroy_v2, (CUstream))                                                           \
    F(int, StreamBeginCapture_v2, (CUstream, int))                                                 \
    F(int, StreamEndCapture, (CUstream, CUgraph *))                                                \
    F(int, GraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                \
    F(int, GraphLaunch, (CUgraphExec, CUstream))                                                   \
    F(int, GraphExecDestroy, (CUgraphExec))                                                        \
    F(int, GraphDestroy, (CUgraph))                                                                \
    F(int, MemAlloc_v2, (uint64_t *, size_t))                                                      \
    F(int, MemFree_v2, (uint64_t))                                                                 \
    F(int, MemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, CUstream))                         \
    F(int, MemcpyDtoHAsync_v2, (void *, uint64_t, size_t, CUstream))                               \
    F(int, ModuleLoadData, (CUmodule *, const void *))                                             \
    F(int, ModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **))                 \
    F(int, ModuleGetFunction, (CUfunction *, CUmodule, const char *))                              \
    F(int, ModuleUnload, (CUmodule))                                                               \
    F(int, LaunchKernel,                                                                           \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **))

/* The same kernels as machine code for @ARCHITECTURE@. */
static const uint64_t binary[] = {
#include "@NAME@_binary.h"
};

typedef int device_id;
typedef struct @MEMORY@ *buffer; /* the place in the memory of the device */
typedef struct {
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction kernels[KERNEL_COUNT];
    int retained, made; /* whether context and stream are to be given back */
} handles;

/* An argument of a kernel: where memory's place or a number lies. */
typedef const void *argument;
#define OF(name) &(name)
