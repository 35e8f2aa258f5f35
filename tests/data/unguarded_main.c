/* The main of a driver that runs where no page can be protected: its operands between bytes that are
 * no number anyone expects, which must still be there afterwards. */
enum { ROOM = 1 << 20, BESIDE = 1 << 12 }; /* bytes for the largest operand of a case; before and after it */
enum { FILLING = 0xff };                   /* a NaN in every type of real numbers, -1 in others */

static region filled(void)
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

static int still_filled(region r)
{
    const unsigned char *before = (const unsigned char *)(void *)r.start - BESIDE;
    const unsigned char *behind = (const unsigned char *)(void *)r.end;
    for (int i = 0; i < BESIDE; ++i)
        if (before[i] != FILLING || behind[i] != FILLING)
            return 0;
    return 1;
}

static const char *running;
static char message[500];
static region regions[OPERANDS];

/* Prints the name of what comes next, so that a trap is attributed. */
static void at(const char *name)
{
    running = name;
    puts(name);
    fflush(stdout);
}

static int told(int wrong)
{
    for (int i = 0; i < OPERANDS && !wrong; ++i)
        if (!still_filled(regions[i]))
            wrong = snprintf(message, sizeof message, "wrote outside of operand %d", i);
    if (wrong)
        printf("%s: %s\n", running, message);
    return wrong;
}

int main(void)
{
    for (int i = 0; i < OPERANDS; ++i)
        regions[i] = filled();
    for (int index = 0; index < kernels(); ++index) {
        at(name_of(index));
        if (told(check(index, 1, regions, message, sizeof message)))
            return 1;
    }
#ifdef PACKING
    at("ps_pack_row");
    if (told(check_packing(400, regions, message, sizeof message)))
        return 1;
#endif
#ifdef SLIDING
    at("ps_slide");
    if (told(check_sliding(400, regions, message, sizeof message)))
        return 1;
#endif
    return 0;
}
