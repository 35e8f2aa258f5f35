
/* Before the first run in a context: `threads` of them share each run, at most @COUNT@, with all the
 * same results; from the beginning the calling thread runs alone. Each of the others, from 1 on,
 * calls @NAME@_work, which does not return. `awake`: the thread that runs the context may not sleep
 * and spins until the others have come. */
void @NAME@_use_workers(@NAME@_context *context, int threads, int awake);
void @NAME@_work(@NAME@_context *context, int thread);

/* Of a thread that @NAME@_work has left by a trap: the run, and every later one, traps in the other
 * threads. @NAME@_failed tells the first of them, or 0. */
void @NAME@_fail(@NAME@_context *context, int thread);
int @NAME@_failed(@NAME@_context *context);
