"""On which CPUs the pthreads of a network run: each begins on one of its own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polysci.export.network_project import write_project
from polysci.network.compiled import compile_network, use_pool
from polysci.printers.network import TEMPLATES
from polysci.text import templates
from tests.support.exported import WARNINGS, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="masks of CPUs are Linux's")
# The CPU of the calling thread; the CPUs that each thread may use, its own first, while they wait
# for the first run and behind that.
MASKS = """\
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "net.h"
static float x[NET_X0_COUNT], y[NET_Y0_COUNT];
static int state_of(int task, char *cpus)
{
    char path[64], line[256], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", task);
    FILE *status = fopen(path, "r");
    while (fgets(line, sizeof line, status)) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "Cpus_allowed_list: %255s", cpus);
    }
    fclose(status);
    return state;
}
static void show(void)
{
    char cpus[256];
    state_of(getpid(), cpus);
    printf("%s", cpus);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        const int task = atoi(entry->d_name);
        if (!task || task == getpid())
            continue;
        while (state_of(task, cpus) != 'S')
            nanosleep(&(struct timespec){0, 1000000}, 0);
        printf(" %s", cpus);
    }
    closedir(tasks);
    puts("");
}
int main(int argc, char **argv)
{
    net_model *model = net_load(argv[argc - 1], 0);
    net_context *context = net_new(model);
    printf("%d\\n", sched_getcpu());
    show();
    net_run(context, x, y);
    show();
    net_free(context);
    net_unload(model);
    return 0;
}
"""
# CPUs for three workers of a thread on CPU 2; arguments are CPUs, each by the first of its core.
CHOICE = """\
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static char *siblings[16], text[64];
static int count;
static FILE *open_list(const char *path)
{
    int cpu;
    sscanf(path, "/sys/devices/system/cpu/cpu%d/", &cpu);
    sprintf(text, "%s,15\\n", siblings[cpu]);
    return siblings[cpu][0] == '-' ? 0 : fmemopen(text, strlen(text), "r");
}
static long call(long number, int task, size_t size, void *mask)
{
    if (number != SYS_sched_getaffinity || task || size < 8)
        return -1;
    for (int cpu = 0; cpu < count; ++cpu)
        *(unsigned char *)mask |= (unsigned char)(siblings[cpu][0] != '.' ? 1 << cpu : 0);
    return 8;
}
#define fopen(path, mode) open_list(path)
#define syscall(number, task, size, mask) call(number, task, size, (void *)(mask))
#define sched_getcpu() 2
#include "placing.c"
int main(int argc, char **argv)
{
    static ps_places places;
    for (count = 0; count < argc - 1; ++count)
        siblings[count] = argv[count + 1];
    find_places(&places);
    take_place(&places, 0);
    leave_place(&places);
    for (int i = 0; places.enough && i < 3; ++i)
        printf("%d ", places.cpus[i]);
    return 0;
}
"""
Masks = Callable[..., tuple[str, list[str], list[str]]]


@pytest.fixture(scope="module")
def masks_of(tmp_path_factory: pytest.TempPathFactory) -> Masks:
    """The masks of a program of two threads, by the place of its threads and the CPUs it has."""
    folder = tmp_path_factory.mktemp("places")
    network = compile_network("mlp:4x32x32x32", "estimate", 2, isa="portable", name="net")
    write_project(use_pool(network, "pthread"), folder)
    (folder / "masks.c").write_text(MASKS)

    def look(place: str, cpus: list[int]) -> tuple[str, list[str], list[str]]:
        words = ["-O1", "-pthread", *([f"-DPS_BIND={place}"] * bool(place)), "masks.c"]
        sources = [path.name for path in folder.glob("net*.c")]
        built = run("gcc", *words, *sources, "-lm", "-o", "masks", cwd=folder)
        assert built.returncode == 0, built.stdout
        listed = ",".join(map(str, cpus))
        own, waiting, behind = run(
            "taskset", "-c", listed, "./masks", "net.weights", cwd=folder
        ).stdout.splitlines()
        return own, waiting.split(), behind.split()

    return look


@pytest.mark.parametrize("place", ["", "PS_FREE", "PS_SPREAD", "PS_PIN"])
def test_workers_have_cpus_of_their_own(place: str, masks_of: Masks) -> None:
    allowed = sorted(os.sched_getaffinity(0))[:2]
    if len(allowed) < 2:
        pytest.skip("one CPU")
    own, (calling, waiting), (still, behind) = masks_of(place, allowed)
    whole = calling
    assert own in map(str, allowed) and still == calling
    narrow = str(allowed[own == str(allowed[0])])
    expected = {"PS_FREE": (whole, whole), "PS_SPREAD": (narrow, whole), "PS_PIN": (narrow, narrow)}
    assert (waiting, behind) == expected[place or "PS_SPREAD"]


def test_nothing_is_done_on_fewer_cpus_than_threads(masks_of: Masks) -> None:
    cpu = min(os.sched_getaffinity(0))
    assert masks_of("PS_PIN", [cpu]) == (str(cpu), [str(cpu)] * 2, [str(cpu)] * 2)


def test_another_place_is_refused(masks_of: Masks) -> None:
    with pytest.raises(AssertionError, match="PS_BIND: expected PS_FREE, PS_SPREAD or PS_PIN"):
        masks_of("pin", [0])


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that chooses CPUs for three workers."""
    folder = tmp_path_factory.mktemp("choice")
    text = templates.fill(TEMPLATES / "placing_pthread.c", {"COUNT": "4"})
    (folder / "placing.c").write_text(text)
    (folder / "choice.c").write_text(CHOICE)
    flags = ["-std=c11", "-DPS_BIND=PS_SPREAD", *WARNINGS]
    built = run("gcc", *flags, "choice.c", "-o", "choice", cwd=folder)
    assert built.returncode == 0, built.stdout
    return folder / "choice"


@pytest.mark.parametrize(
    ("siblings", "chosen"),
    [
        ("0 1 2 3 4 5", "3 4 5"),
        ("0 1 2 3 0 1 2 3", "3 4 5"),
        ("0 0 2 2 4 4 6 6", "4 6 0"),
        ("0 0 2 2", "0 3 1"),
        ("0 . 2 . 4 . 6 .", "4 6 0"),
        ("0 1 2", ""),
        ("- - - -", "3 0 1"),
        ("x 99999 -7 3", "3 0 1"),
    ],
)
def test_cores_without_a_thread_are_chosen_first(siblings: str, chosen: str, choice: Path) -> None:
    """``.`` is a CPU that the thread may not use, ``-`` one of unknown siblings."""
    ran = run(str(choice), *siblings.split(), cwd=choice.parent)
    assert ran.returncode == 0 and ran.stdout.strip() == chosen
