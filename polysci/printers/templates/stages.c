@TEAM_CODE@/* What stages work on: tensors between inputs and outputs, constants as they are, packed weights. */
typedef struct {
    char *arena;
    const char *constants, *packed;
    const void *in[@INPUTS@];
    void *out[@OUTPUTS@];
@TEAM_OF@@TIMES@} ps_memory;

/* GCC 12 takes some loops, once it has rewritten their addresses, for functions without effects,
   and drops their calls: it must not look inside.@WHY_TUNED@ */
#if defined __GNUC__ && !defined __clang__
#define PS_LOOP PS_KERNEL __attribute__((noipa@TUNED@))
#else
#define PS_LOOP PS_KERNEL
#endif

@NOW@@LOOPS@
@?STATE@
/* State, the first bytes of an arena, as it is before the first run. */
static void reset_state(char *arena, const char *constants)
{
    memset(arena, 0, @STATE@);
@RESET@}

@/STATE@
static void stages(const ps_memory *m)
{
@STAGES@
}

/* What one thread does of a run: its caller gets the mode of its numbers back. */
static void share(const ps_memory *m)
{
    const uint64_t mode = ps_flush_denormals();
    stages(m);
    ps_restore_mode(mode);
}
@POOL_CODE@