
static void run(@NAME@_context *context, void **x, void **y)
{
    (void)x, (void)y;
@CALLS@}
