/* What @NAME@_run returns where data asks for more elements or steps than there is room for: the last of
 * the outputs says how many it asks for, and the others mean nothing. */
enum { @?ALONE@@UPPER@_OK = 0, @/ALONE@@UPPER@_TOO_LONG = 6 };
