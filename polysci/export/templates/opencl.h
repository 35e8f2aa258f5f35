enum {
    @UPPER@_OK = 0,        /* done */
    @UPPER@_NO_DEVICE = 1, /* no loader of OpenCL, no driver, or no device of this number */
    @UPPER@_NO_BUILD = 2,  /* the driver refuses the kernels */
    @UPPER@_NO_MEMORY = 3, /* of the device, or of this process */
    @UPPER@_FAILED = 4     /* another error of OpenCL's */
};

/* Why the last call of this thread that failed did: how many bytes were asked for, the log of the
 * driver, the number of OpenCL's error. */
const char *@NAME@_why(void);

/* 1 if there is an OpenCL device, else 0. */
int @NAME@_supported(void);

/* A device with the kernels, which the driver compiles when it is opened. Devices are numbered from 0
 * on, in the order of their platforms. The second form takes a cl_command_queue of the caller's, which
 * runs commands in order; it stays until the device is closed. *device is null where one fails. */
typedef struct @NAME@_device @NAME@_device;
struct _cl_command_queue;
int @NAME@_open(int number, @NAME@_device **device);
int @NAME@_open_queue(struct _cl_command_queue *queue, @NAME@_device **device);
void @NAME@_close(@NAME@_device *device);
