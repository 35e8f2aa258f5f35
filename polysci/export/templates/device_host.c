#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernels, and their text by lines: @TEXT_FILE@. */
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

@API@
#define MEMBER(result, name, parameters) result(*name) parameters;
typedef struct {
    FUNCTIONS(MEMBER)
} driver;

/* Fill it with the functions of the loader; whether all are there. */
static int found_driver(driver *functions)
{
    void *loader = dlopen(@UPPER@_LOADER, RTLD_NOW | RTLD_LOCAL), *function = 0;
    int all = loader != 0;
#define FIND(result, name, parameters)                                                             \
    function = all ? dlsym(loader, "@PREFIX@" #name) : 0;                                           \
    memcpy(&functions->name, &function, sizeof function);                                          \
    all &= function != 0;
    FUNCTIONS(FIND)
    return all; /* it stays: drivers do not like to go */
}

struct @NAME@_device {
    driver driver;
    device_id id;
    handles own;
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

@CALLS@
static int devices_here(void)
{
    driver functions;
    device_id id = 0;
    return found_driver(&functions) ? count_devices(&functions, 0, &id) : 0;
}

/* Open what `device` holds so far: the rest of it, or nothing. */
static int opened(@NAME@_device *device, @NAME@_device **to)
{
    if (!device->fault)
        build(device);
    if (!device->fault)
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
    else if (!found_driver(&device->driver))
        fail(device, @UPPER@_NO_DEVICE, "%s, the @LOADER_TITLE@, cannot be opened", @UPPER@_LOADER);
    return device;
}

int @NAME@_open(int number, @NAME@_device **to)
{
    @NAME@_device *device = new_device();
    *to = 0;
    if (!device)
        return @UPPER@_NO_MEMORY;
    if (!device->fault) {
        const int count = count_devices(&device->driver, number, &device->id);
        if (number < 0 || number >= count)
            fail(device, @UPPER@_NO_DEVICE, "no @LANGUAGE@ device %d: there are %d", number, count);
    }
    if (!device->fault)
        open_handles(device);
    return opened(device, to);
}

int @NAME@_open_queue(struct @QUEUE@ *queue, @NAME@_device **to)
{
    @NAME@_device *device = new_device();
    *to = 0;
    if (!device)
        return @UPPER@_NO_MEMORY;
    if (!device->fault)
        adopt_queue(device, queue);
    return opened(device, to);
}

void @NAME@_close(@NAME@_device *device)
{
    if (device)
        close_handles(device);
    free(device);
}

/* A copy on the device of an array; null of none. */
static buffer copy_in(@NAME@_device *device, const void *from, size_t bytes)
{
    buffer memory = from ? reserve(device, bytes) : 0;
    if (memory)
        write_memory(device, memory, 0, from, bytes);
    return memory;
}

@LAUNCHES@
