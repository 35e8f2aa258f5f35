/* A pool that runs parts one after the other. */
static void run_in_turn(void *pool, int parts, @NAME@_part *part, void *data)
{
    (void)pool;
    while (parts-- > 0)
        part(data, parts);
}

