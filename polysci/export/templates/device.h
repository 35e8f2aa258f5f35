enum {
    @UPPER@_OK = 0,        /* done */
    @UPPER@_NO_DEVICE = 1, /* no driver, or no device of this number */
    @UPPER@_NO_BUILD = 2,  /* the driver refuses the kernels */
    @UPPER@_NO_MEMORY = 3, /* of the device, or of this process */
@?SEVERAL@
    @UPPER@_NO_SIZE = 5,   /* no entry for the sizes: nothing was done */
@/SEVERAL@
    @UPPER@_FAILED = 4     /* another error of @LANGUAGE@'s */
};

/* Why the last call of this thread that failed did: how many bytes were asked for, the log of the
 * driver, the number of @LANGUAGE@'s error. */
const char *@NAME@_why(void);

/* 1 if there is a device of @LANGUAGE@'s, else 0. */
int @NAME@_supported(void);

/* A device with the kernels: @BUILDS@. Devices are numbered from 0 on, in
 * the driver's order. The second form takes a @QUEUE_TITLE@ of the caller's, which runs
 * commands in order; it stays until the device is closed. *device is null where one fails. */
typedef struct @NAME@_device @NAME@_device;
struct @QUEUE@;
int @NAME@_open(int number, @NAME@_device **device);
int @NAME@_open_queue(struct @QUEUE@ *queue, @NAME@_device **device);
void @NAME@_close(@NAME@_device *device);
