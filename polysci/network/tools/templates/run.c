
static void run(@NAME@_context *context, void **x, void **y)
{
    (void)x, (void)y;
    @NAME@_run(context@CALLED@);
}
