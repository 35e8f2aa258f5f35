/* Operands where no page can be protected: between bytes that are no number anyone expects, which must
 * still be there afterwards. */
enum { ROOM = 1 << 20, BESIDE = 1 << 12 }; /* bytes for the largest operand of a case; before and after it */
enum { FILLING = 0xff };                   /* a NaN in every type of real numbers, -1 in others */

static region reserve(void)
{
    unsigned char *all = malloc(ROOM + 2 * BESIDE);
    region r = {0, 0};
    if (!all) {
        puts("no memory");
        exit(2);
    }
    memset(all, FILLING, ROOM + 2 * BESIDE);
    r.start = (void *)(all + BESIDE);
    r.end = (void *)(all + BESIDE + ROOM);
    return r;
}

static int is_untouched(region r)
{
    const unsigned char *before = (const unsigned char *)(void *)r.start - BESIDE;
    const unsigned char *behind = (const unsigned char *)(void *)r.end;
    for (int i = 0; i < BESIDE; ++i)
        if (before[i] != FILLING || behind[i] != FILLING)
            return 0;
    return 1;
}
