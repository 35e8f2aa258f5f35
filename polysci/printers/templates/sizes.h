/* What @NAME@_run returns: there is an entry for the sizes, or none, and then nothing was done. */
enum { @UPPER@_OK = 0, @UPPER@_NO_SIZE = 1 };
@RUN_HEAD@;

@?PUBLIC@
/* The entries: @KNOWN@. */
@ENTRIES@
@/PUBLIC@
