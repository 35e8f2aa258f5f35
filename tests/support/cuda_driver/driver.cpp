/* libcuda.so.1 whose one device is this CPU: the driver's functions as polysci and what it exports
 * call them, each with the checks of its documentation (CUDA Driver API Reference).
 *
 * Work on a stream waits as long as the documentation lets it: it is done when something waits for
 * the stream, in the order in which it was given.  A result that is read too early, or memory that
 * is freed too early, so shows.  Kernels are the library of CUDA_CODE that has the name of an
 * image's checksum: the same text, compiled for the CPU.  An error of a kernel stays, as a lost
 * device does.  CUDA_FAULT="FUNCTION NUMBER ERROR" makes one call fail, FUNCTION "kernel" a launch
 * when its turn comes; CUDA_MEMORY is the memory in bytes, CUDA_CAPABILITY 80 for sm_80. */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
    ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901, STREAM_CAPTURE_IMPLICIT = 906, GRAPH_EXEC_UPDATE_FAILURE = 910
};
enum { MOST_THREADS = 1024, MOST_SHARED = 49152, MARGIN = 256 };

struct CUctx_st {
    int references = 0;
};
struct Memory {
    std::vector<unsigned char> bytes; /* between two margins */
    size_t size;
    unsigned char *data() { return bytes.data() + MARGIN; }
};
struct CUmod_st {
    void *library;
};
struct CUfunc_st {
    std::string name;
    CUmod_st *module;
    void (*run)(int64_t, int64_t, int, const int64_t *);
    size_t count; /* of its parameters, 8 bytes each */
    size_t most;  /* threads of a block, of its launch bounds */
};
struct Launch {
    CUfunc_st *function;
    unsigned blocks, threads;
    std::vector<int64_t> arguments;
};
struct CUgraph_st {
    std::vector<Launch> nodes;
};
struct CUgraphExec_st {
    std::vector<Launch> nodes;
};
struct CUstream_st {
    bool blocking;
    std::vector<std::function<void()>> work;
    CUgraph_st *captured = nullptr;
    int mode = 0;
    bool invalid = false;
};
struct CUevent_st {
    bool recorded = false, done = false;
    double time = 0;
    CUstream_st *stream = nullptr;
};
typedef CUctx_st *CUcontext;
typedef CUmod_st *CUmodule;
typedef CUfunc_st *CUfunction;
typedef CUstream_st *CUstream;
typedef CUevent_st *CUevent;
typedef CUgraph_st *CUgraph;
typedef CUgraphExec_st *CUgraphExec;

static std::recursive_mutex mutex;
static bool initialised;
static CUctx_st primary;
static thread_local std::vector<CUcontext> current{nullptr};
static std::map<CUdeviceptr, Memory> memories;
static size_t in_use;
static std::set<void *> handles; /* all that are alive */
static std::map<std::string, long> counts;
static int lost; /* the error that stays */

static double now()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static const char *setting(const char *name, const char *otherwise)
{
    const char *text = getenv(name);
    return text && *text ? text : otherwise;
}

/* The error that CUDA_FAULT asks of this call of a function. */
static int fault_of(const char *name)
{
    char which[64] = "";
    long number = 0;
    int error = 0;
    sscanf(setting("CUDA_FAULT", ""), "%63s %ld %d", which, &number, &error);
    return ++counts[name] == number && !strcmp(which, name) ? error : 0;
}

static int need_context() { return current.back() && primary.references > 0 ? OK : INVALID_CONTEXT; }

#define ENTER(name)                                                                                \
    std::lock_guard<std::recursive_mutex> lock(mutex);                                             \
    if (!initialised && strcmp(#name, "cuInit"))                                                   \
        return NOT_INITIALIZED;                                                                    \
    if (int error = fault_of(#name))                                                               \
        return error;
#define ENTER_CONTEXT(name)                                                                        \
    ENTER(name)                                                                                    \
    if (int error = lost ? lost : need_context())                                                  \
        return error;
#define NEED(condition, error)                                                                     \
    if (!(condition))                                                                              \
        return error;
#define API extern "C" CUresult

template <class T>
static bool alive(T *handle)
{
    return handles.count(handle) > 0;
}

template <class T>
static T *born(T *handle)
{
    handles.insert(handle);
    return handle;
}

template <class T>
static void end(T *handle)
{
    handles.erase(handle);
    delete handle;
}

static std::vector<CUstream> streams;

/* Whether an allocation's margins are as they were. */
static bool whole(Memory &memory)
{
    for (size_t i = 0; i < MARGIN; ++i)
        if (memory.bytes[i] != 0xa5 || memory.data()[memory.size + i] != 0xa5)
            return false;
    return true;
}

/* Do the work of a stream; an error of it stays. */
static int finish(CUstream stream)
{
    std::vector<std::function<void()>> work;
    work.swap(stream->work);
    for (auto &step : work)
        if (!lost)
            step();
    for (auto &entry : memories)
        if (!whole(entry.second) && !lost)
            lost = ILLEGAL_ADDRESS;
    return lost;
}

/* What a copy that waits does first: all streams but those that never wait for it. */
static int finish_blocking()
{
    for (CUstream stream : streams) {
        if (stream->blocking && stream->captured) {
            stream->invalid = true;
            return STREAM_CAPTURE_IMPLICIT;
        }
        if (stream->blocking)
            finish(stream);
    }
    return lost;
}

static void run(const Launch &launch)
{
    if (int error = fault_of("kernel"))
        lost = error;
    else
        launch.function->run(launch.blocks, launch.threads, 0, launch.arguments.data());
}

/* Whether bytes lie in memory of the device. */
static bool is_memory(CUdeviceptr at, size_t size)
{
    auto after = memories.upper_bound(at);
    if (after == memories.begin())
        return false;
    auto &[start, memory] = *--after;
    return at + size <= start + memory.size;
}

API cuInit(unsigned flags)
{
    ENTER(cuInit)
    NEED(!flags, INVALID_VALUE)
    NEED(strcmp(setting("CUDA_CAPABILITY", "80"), "none"), NO_DEVICE)
    initialised = true;
    return OK;
}

API cuDriverGetVersion(int *version)
{
    *version = 13000;
    return OK;
}

API cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount)
    *count = 1;
    return OK;
}

API cuDeviceGet(CUdevice *device, int number)
{
    ENTER(cuDeviceGet)
    NEED(number == 0, INVALID_DEVICE)
    *device = 0;
    return OK;
}

API cuDeviceGetName(char *name, int size, CUdevice device)
{
    ENTER(cuDeviceGetName)
    NEED(device == 0, INVALID_DEVICE)
    snprintf(name, (size_t)size, "a CPU in place of a GPU");
    return OK;
}

static size_t memory_size() { return strtoull(setting("CUDA_MEMORY", "4294967296"), nullptr, 10); }

API cuDeviceTotalMem_v2(size_t *size, CUdevice device)
{
    ENTER(cuDeviceTotalMem)
    NEED(device == 0, INVALID_DEVICE)
    *size = memory_size();
    return OK;
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute)
    NEED(device == 0, INVALID_DEVICE)
    const int capability = atoi(setting("CUDA_CAPABILITY", "80"));
    const std::map<int, int> values{
        {1, MOST_THREADS}, {8, MOST_SHARED}, {10, 32}, {13, 1410000}, {16, 2}, {36, 1215000},
        {37, 5120}, {38, 4 << 20}, {75, capability / 10}, {76, capability % 10},
        {81, 167936}, {97, 166912},
    };
    auto entry = values.find(attribute);
    NEED(entry != values.end(), INVALID_VALUE)
    *value = entry->second;
    return OK;
}

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain)
    NEED(device == 0, INVALID_DEVICE)
    ++primary.references;
    *context = &primary;
    return OK;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease)
    NEED(device == 0, INVALID_DEVICE)
    NEED(primary.references > 0, INVALID_CONTEXT)
    --primary.references;
    return OK;
}

API cuCtxSetCurrent(CUcontext context)
{
    ENTER(cuCtxSetCurrent)
    NEED(!context || context == &primary, INVALID_CONTEXT)
    current.back() = context;
    return OK;
}

API cuCtxGetCurrent(CUcontext *context)
{
    ENTER(cuCtxGetCurrent)
    *context = current.back();
    return OK;
}

API cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(cuCtxPushCurrent)
    NEED(context == &primary, INVALID_CONTEXT)
    current.push_back(context);
    return OK;
}

API cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(cuCtxPopCurrent)
    NEED(current.size() > 1, INVALID_CONTEXT)
    if (context)
        *context = current.back();
    current.pop_back();
    return OK;
}

API cuCtxGetDevice(CUdevice *device)
{
    ENTER_CONTEXT(cuCtxGetDevice)
    *device = 0;
    return OK;
}

API cuStreamCreate(CUstream *stream, unsigned flags)
{
    ENTER_CONTEXT(cuStreamCreate)
    NEED(flags <= 1, INVALID_VALUE)
    *stream = born(new CUstream_st{flags == 0, {}});
    streams.push_back(*stream);
    return OK;
}

API cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER(cuStreamGetCtx)
    NEED(alive(stream), INVALID_HANDLE)
    *context = &primary;
    return OK;
}

API cuStreamSynchronize(CUstream stream)
{
    ENTER_CONTEXT(cuStreamSynchronize)
    NEED(alive(stream), INVALID_HANDLE)
    if (stream->captured) {
        stream->invalid = true;
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    return finish(stream);
}

API cuStreamDestroy_v2(CUstream stream)
{
    ENTER_CONTEXT(cuStreamDestroy)
    NEED(alive(stream), INVALID_HANDLE)
    finish(stream);
    std::erase(streams, stream);
    end(stream);
    return lost;
}

API cuEventCreate(CUevent *event, unsigned flags)
{
    ENTER_CONTEXT(cuEventCreate)
    NEED(flags <= 3, INVALID_VALUE)
    *event = born(new CUevent_st);
    return OK;
}

API cuEventRecord(CUevent event, CUstream stream)
{
    ENTER_CONTEXT(cuEventRecord)
    NEED(alive(event) && alive(stream), INVALID_HANDLE)
    NEED(!stream->captured, NOT_SUPPORTED) /* it would tell of no time */
    event->recorded = true, event->done = false, event->stream = stream;
    stream->work.push_back([event] { event->done = true, event->time = now(); });
    return OK;
}

API cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent last)
{
    ENTER_CONTEXT(cuEventElapsedTime)
    NEED(alive(first) && alive(last) && first->recorded && last->recorded, INVALID_HANDLE)
    NEED(first->done && last->done, NOT_READY)
    *milliseconds = (float)((last->time - first->time) * 1e3);
    return OK;
}

API cuEventDestroy_v2(CUevent event)
{
    ENTER_CONTEXT(cuEventDestroy)
    NEED(alive(event), INVALID_HANDLE)
    NEED(!event->recorded || event->done || !alive(event->stream), NOT_READY)
    end(event);
    return OK;
}

/* Whether a capture forbids a call that may wait for the device. */
static bool forbidden()
{
    for (CUstream stream : streams)
        if (stream->captured && stream->mode < 2)
            return true;
    return false;
}

API cuMemAlloc_v2(CUdeviceptr *at, size_t size)
{
    ENTER_CONTEXT(cuMemAlloc)
    NEED(size, INVALID_VALUE)
    NEED(!forbidden(), STREAM_CAPTURE_UNSUPPORTED)
    NEED(size <= memory_size() && in_use <= memory_size() - size, OUT_OF_MEMORY)
    Memory memory{std::vector<unsigned char>(size + 2 * MARGIN, 0xa5), size};
    memset(memory.data(), 0xff, size);
    *at = (CUdeviceptr)memory.data();
    in_use += size;
    memories.emplace(*at, std::move(memory));
    return OK;
}

API cuMemFree_v2(CUdeviceptr at)
{
    ENTER_CONTEXT(cuMemFree)
    NEED(!forbidden(), STREAM_CAPTURE_UNSUPPORTED)
    auto entry = memories.find(at);
    NEED(entry != memories.end(), INVALID_VALUE)
    for (CUstream stream : streams)
        finish(stream); /* freeing waits for the device */
    in_use -= entry->second.size;
    memories.erase(entry);
    return lost;
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    ENTER_CONTEXT(cuMemcpyHtoD)
    NEED(size && from && is_memory(to, size), INVALID_VALUE)
    if (int error = finish_blocking())
        return error;
    memcpy((void *)to, from, size);
    return OK;
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    ENTER_CONTEXT(cuMemcpyDtoH)
    NEED(size && to && is_memory(from, size), INVALID_VALUE)
    if (int error = finish_blocking())
        return error;
    memcpy(to, (const void *)from, size);
    return OK;
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    ENTER_CONTEXT(cuMemcpyHtoDAsync)
    NEED(alive(stream), INVALID_HANDLE)
    NEED(size && from && is_memory(to, size) && !stream->captured, INVALID_VALUE)
    stream->work.push_back([to, from, size] { memcpy((void *)to, from, size); });
    return OK;
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    ENTER_CONTEXT(cuMemcpyDtoHAsync)
    NEED(alive(stream), INVALID_HANDLE)
    NEED(size && to && is_memory(from, size) && !stream->captured, INVALID_VALUE)
    stream->work.push_back([to, from, size] { memcpy(to, (const void *)from, size); });
    return OK;
}

/* The bytes of an image: machine code for a device of CUDA, or text that ends with a zero. */
static int image_size(const unsigned char *image, size_t *size)
{
    uint16_t machine, count;
    uint32_t flags;
    uint64_t headers;
    if (memcmp(image, "\x7f" "ELF", 4)) {
        *size = strlen((const char *)image);
        return strstr((const char *)image, ".target sm_") ? OK : INVALID_IMAGE;
    }
    memcpy(&machine, image + 18, sizeof machine), memcpy(&headers, image + 32, sizeof headers);
    memcpy(&flags, image + 48, sizeof flags), memcpy(&count, image + 56, sizeof count);
    *size = headers + 56 * (size_t)count;
    if (machine != 190)
        return INVALID_IMAGE;
    const int its = (int)(flags >> 8 & 0xff), own = atoi(setting("CUDA_CAPABILITY", "80"));
    return its / 10 == own / 10 && its <= own ? OK : NO_BINARY_FOR_GPU;
}

API cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER_CONTEXT(cuModuleLoadData)
    NEED(module && image, INVALID_VALUE)
    size_t size = 0;
    if (int error = image_size((const unsigned char *)image, &size))
        return error;
    uint64_t sum = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < size; ++i)
        sum = (sum ^ ((const unsigned char *)image)[i]) * 1099511628211u;
    char path[4096];
    snprintf(path, sizeof path, "%s/%016llx.so", setting("CUDA_CODE", "."), (unsigned long long)sum);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    NEED(library, INVALID_PTX)
    *module = born(new CUmod_st{library});
    return OK;
}

/* Options are those of a log alone: 5 its text, 6 its size. */
API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, const int *options,
                       void **values)
{
    const CUresult error = cuModuleLoadData(module, image);
    for (unsigned i = 0; i < count; ++i)
        if (options[i] != 5 && options[i] != 6)
            return INVALID_VALUE;
    for (unsigned i = 0; error && i < count; ++i)
        if (options[i] == 5)
            snprintf((char *)values[i], 64, "ptxas: no code of this text");
    return error;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER_CONTEXT(cuModuleGetFunction)
    NEED(alive(module), INVALID_HANDLE)
    const std::string symbol = std::string("emu_") + name;
    void *run = dlsym(module->library, symbol.c_str());
    NEED(run, NOT_FOUND)
    auto *count = (const size_t *)dlsym(module->library, (symbol + "_count").c_str());
    *function = born(new CUfunc_st{name, module, nullptr, *count, MOST_THREADS});
    memcpy(&(*function)->run, &run, sizeof run);
    return OK;
}

API cuModuleUnload(CUmodule module)
{
    ENTER_CONTEXT(cuModuleUnload)
    NEED(alive(module), INVALID_HANDLE)
    for (CUstream stream : streams)
        NEED(stream->work.empty(), LAUNCH_FAILED) /* its kernels would be gone */
    end(module);
    return OK;
}

API cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    ENTER_CONTEXT(cuLaunchKernel)
    NEED(alive(function) && alive(function->module) && alive(stream), INVALID_HANDLE)
    NEED(x && x <= 0x7fffffff && y == 1 && z == 1 && bx && by == 1 && bz == 1, INVALID_VALUE)
    NEED(bx <= function->most && shared <= MOST_SHARED && !extra, INVALID_VALUE)
    NEED(parameters || !function->count, INVALID_VALUE)
    Launch launch{function, x, bx, std::vector<int64_t>(function->count)};
    for (size_t i = 0; i < function->count; ++i)
        memcpy(&launch.arguments[i], parameters[i], sizeof(int64_t));
    if (stream->captured)
        stream->captured->nodes.push_back(launch);
    else
        stream->work.push_back([launch] { run(launch); });
    return OK;
}

API cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER_CONTEXT(cuStreamBeginCapture)
    NEED(alive(stream), INVALID_HANDLE)
    NEED(!stream->captured && mode >= 0 && mode <= 2, INVALID_VALUE)
    stream->captured = born(new CUgraph_st), stream->mode = mode, stream->invalid = false;
    return OK;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER_CONTEXT(cuStreamEndCapture)
    NEED(alive(stream), INVALID_HANDLE)
    NEED(stream->captured, INVALID_VALUE)
    *graph = stream->invalid ? nullptr : stream->captured;
    if (stream->invalid)
        end(stream->captured);
    stream->captured = nullptr;
    return stream->invalid ? STREAM_CAPTURE_INVALIDATED : OK;
}

API cuGraphInstantiateWithFlags(CUgraphExec *runnable, CUgraph graph, unsigned long long flags)
{
    ENTER_CONTEXT(cuGraphInstantiate)
    NEED(alive(graph) && !flags, INVALID_VALUE)
    *runnable = born(new CUgraphExec_st{graph->nodes});
    return OK;
}

struct UpdateResult {
    int result;
    void *node, *from;
};

API cuGraphExecUpdate_v2(CUgraphExec runnable, CUgraph graph, UpdateResult *result)
{
    ENTER_CONTEXT(cuGraphExecUpdate)
    NEED(alive(runnable) && alive(graph) && result, INVALID_VALUE)
    bool same = runnable->nodes.size() == graph->nodes.size();
    for (size_t i = 0; same && i < graph->nodes.size(); ++i)
        same = runnable->nodes[i].function == graph->nodes[i].function;
    *result = {same ? 0 : 2, nullptr, nullptr}; /* the topology changed */
    NEED(same, GRAPH_EXEC_UPDATE_FAILURE)
    runnable->nodes = graph->nodes;
    return OK;
}

API cuGraphLaunch(CUgraphExec runnable, CUstream stream)
{
    ENTER_CONTEXT(cuGraphLaunch)
    NEED(alive(runnable) && alive(stream), INVALID_HANDLE)
    NEED(!stream->captured, INVALID_VALUE)
    for (const Launch &launch : runnable->nodes)
        stream->work.push_back([launch] { run(launch); });
    return OK;
}

API cuGraphExecDestroy(CUgraphExec runnable)
{
    ENTER_CONTEXT(cuGraphExecDestroy)
    NEED(alive(runnable), INVALID_VALUE)
    end(runnable);
    return OK;
}

API cuGraphDestroy(CUgraph graph)
{
    ENTER_CONTEXT(cuGraphDestroy)
    NEED(alive(graph), INVALID_VALUE)
    end(graph);
    return OK;
}

API cuGetErrorName(CUresult error, const char **name)
{
    static const std::map<int, const char *> names{
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"}, {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    };
    auto entry = names.find(error);
    *name = entry == names.end() ? nullptr : entry->second;
    return *name ? OK : INVALID_VALUE;
}

/* How often a function was called; how many objects and bytes of the device are alive. */
extern "C" long emulated_calls(const char *name) { return counts[name]; }
extern "C" long emulated_objects(void) { return (long)handles.size(); }
extern "C" long emulated_bytes(void) { return (long)in_use; }

#define NAMES(F)                                                                                   \
    F(cuInit) F(cuDriverGetVersion) F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName)          \
    F(cuDeviceTotalMem_v2) F(cuDeviceGetAttribute) F(cuDevicePrimaryCtxRetain)                     \
    F(cuDevicePrimaryCtxRelease_v2) F(cuCtxSetCurrent) F(cuCtxGetCurrent) F(cuCtxPushCurrent_v2)   \
    F(cuCtxPopCurrent_v2) F(cuCtxGetDevice) F(cuStreamCreate) F(cuStreamGetCtx)                    \
    F(cuStreamSynchronize) F(cuStreamDestroy_v2) F(cuEventCreate) F(cuEventRecord)                 \
    F(cuEventElapsedTime_v2) F(cuEventDestroy_v2) F(cuMemAlloc_v2) F(cuMemFree_v2)                 \
    F(cuMemcpyHtoD_v2) F(cuMemcpyDtoH_v2) F(cuMemcpyHtoDAsync_v2) F(cuMemcpyDtoHAsync_v2)          \
    F(cuModuleLoadData) F(cuModuleLoadDataEx) F(cuModuleGetFunction) F(cuModuleUnload)             \
    F(cuLaunchKernel) F(cuStreamBeginCapture_v2) F(cuStreamEndCapture)                             \
    F(cuGraphInstantiateWithFlags) F(cuGraphExecUpdate_v2) F(cuGraphLaunch) F(cuGraphExecDestroy)  \
    F(cuGraphDestroy) F(cuGetErrorName)

/* NVRTC asks for functions that have no documentation; it does without. */
API cuGetExportTable(const void **table, const void *)
{
    *table = nullptr;
    return NOT_FOUND;
}

/* Callers ask by the name without the version at its end. */
API cuGetProcAddress_v2(const char *name, void **place, int, uint64_t, int *status)
{
#define ROW(function) {#function, (void *)function},
    static const std::map<std::string, void *> all{NAMES(ROW)};
    *place = nullptr;
    for (const char *ending : {"", "_v2", "WithFlags"}) {
        auto entry = all.find(std::string(name) + ending);
        if (entry != all.end())
            *place = entry->second;
    }
    if (status)
        *status = *place ? 0 : 1;
    return *place ? OK : NOT_FOUND;
}
