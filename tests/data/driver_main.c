/* The main of a driver that runs where no Python does; `reserve` and `is_untouched` stand ahead. */
static const char *running;
static char message[500];
static region regions[OPERANDS];

/* Prints the name of what comes next, so that a crash or a trap is attributed. */
static void at(const char *name)
{
    running = name;
    puts(name);
    fflush(stdout);
}

static int told(int wrong)
{
    for (int i = 0; i < OPERANDS && !wrong; ++i)
        if (!is_untouched(regions[i]))
            wrong = snprintf(message, sizeof message, "wrote outside of operand %d", i);
    if (wrong)
        printf("%s: %s\n", running, message);
    return wrong;
}

int main(void)
{
    for (int i = 0; i < OPERANDS; ++i)
        regions[i] = reserve();
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
