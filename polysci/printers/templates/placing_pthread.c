/* Where workers run: where the system puts them; at the beginning of the first run on CPUs of their
 * own, which they may leave then; or on these always. The thread that calls is left where it is. */
#define PS_FREE 1
#define PS_SPREAD 2
#define PS_PIN 3
#ifndef PS_BIND
#define PS_BIND PS_SPREAD
#endif
#if PS_BIND != PS_FREE && PS_BIND != PS_SPREAD && PS_BIND != PS_PIN
#error "PS_BIND: expected PS_FREE, PS_SPREAD or PS_PIN"
#endif

#if defined __linux__ && PS_BIND != PS_FREE
#include <sys/syscall.h>
#include <unistd.h>

enum { CPUS = 8192, CPUS_OF_WORD = 8 * sizeof(long) };
typedef struct {
    unsigned long words[CPUS / CPUS_OF_WORD];
} ps_cpus;
typedef struct {
    ps_cpus allowed;
    int cpus[@COUNT@ - 1], enough; /* CPUs of the workers, where there are as many as threads */
} ps_places;

static int has_cpu(const ps_cpus *cpus, int cpu)
{
    return (cpus->words[cpu / CPUS_OF_WORD] >> cpu % CPUS_OF_WORD & 1) != 0;
}

static void add_cpu(ps_cpus *cpus, int cpu)
{
    cpus->words[cpu / CPUS_OF_WORD] |= 1ul << cpu % CPUS_OF_WORD;
}

/* The first CPU of a core, which stands for it. */
static int core_of(int cpu)
{
    _Alignas(64) char path[80];
    const char *const form = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list";
    (void)snprintf(path, sizeof path, form, cpu);
    FILE *file = fopen(path, "re");
    int first = -1;
    if (file) {
        if (fscanf(file, "%d", &first) != 1)
            first = -1;
        (void)fclose(file);
    }
    return first >= 0 && first < CPUS ? first : cpu;
}

/* A CPU for each worker, of those that the calling thread may use: cores without a thread first. */
static void find_places(ps_places *places)
{
    _Alignas(64) ps_cpus taken = {{0}}, cores = {{0}};
    const int own = sched_getcpu();
    int count = 0;
    if (own < 0 || own >= CPUS ||
        syscall(SYS_sched_getaffinity, 0, sizeof places->allowed, &places->allowed) < 0)
        return;
    add_cpu(&taken, own);
    add_cpu(&cores, core_of(own));
    for (int shared = 0; shared < 2; ++shared) /* cores, by several threads */
        for (int i = 1; i < CPUS && count < @COUNT@ - 1; ++i) {
            const int cpu = (own + i) % CPUS;
            if (!has_cpu(&places->allowed, cpu) || has_cpu(&taken, cpu))
                continue;
            const int core = core_of(cpu);
            if (!shared && has_cpu(&cores, core))
                continue;
            add_cpu(&taken, cpu);
            add_cpu(&cores, core);
            places->cpus[count++] = cpu;
        }
    places->enough = count == @COUNT@ - 1;
}

static void allow(const ps_cpus *cpus)
{
    (void)syscall(SYS_sched_setaffinity, 0, sizeof *cpus, cpus);
}

/* Of a worker, before its first run. */
static void take_place(const ps_places *places, int worker)
{
    _Alignas(64) ps_cpus one = {{0}};
    add_cpu(&one, places->cpus[worker]);
    if (places->enough)
        allow(&one);
}

/* Of a worker that is in its first run. */
static void leave_place(const ps_places *places)
{
    if (places->enough && PS_BIND == PS_SPREAD)
        allow(&places->allowed);
}
#else
typedef struct {
    char none;
} ps_places;
static void find_places(ps_places *places) { (void)places; }
static void take_place(const ps_places *places, int worker) { (void)places, (void)worker; }
static void leave_place(const ps_places *places) { (void)places; }
#endif
